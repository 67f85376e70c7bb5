"""First and last names for phonebooks, enough for 60,000 full names."""

FIRST_NAMES = """
Aaron Abigail Adam Adrian Agnes Alan Albert Alice Alma Amanda Amber Amos Amy Andrea Andrew Angela Anita Ann Anna
Anthony Arnold Arthur Audrey Barbara Barry Beatrice Benjamin Bernard Bertha Beth Betty Beverly Blanche Bradley
Brandon Brenda Brian Bridget Bruce Calvin Carl Carla Carmen Carol Caroline Cecil Celia Charles Charlotte Chester
Christina Clara Clarence Claude Clifford Clyde Connie Cora Craig Crystal Curtis Cynthia Daisy Dale Dana Daniel
Darlene David Dawn Deborah Dennis Derek Diana Dolores Donald Donna Doris Dorothy Douglas Duane Earl Edgar Edith
Edna Edward Eileen Elaine Eleanor Elizabeth Ella Elmer Elsie Emily Emma Eric Ernest Erin Esther Ethel Eugene Eva
Evelyn Felix Fiona Floyd Frances Frank Frederick Gail Gary George Gerald Gina Gladys Glenn Gloria Gordon Grace
Greg Gwen Harold Harriet Harry Harvey Hazel Heather Helen Henry Herbert Herman Howard Ian Ida Irene Iris Isaac
Ivan Jack Jacob James Jane Janet Jason Jean Jeffrey Jenny Jerome Jessica Joan Joel John Jonathan Joseph Joyce
Juan Judith Julia Karen Karl Keith Kelly Kenneth Kevin Larry Laura Lawrence Leah Leo Leonard Lillian Linda Lloyd
Lois Louise Lucy Luis Lydia Marcus Maria Marion Mark Martha Martin Mary Matthew Megan Miriam Mona Nathan Nina
Norman
"""
LAST_NAMES = """
Abbott Acosta Adkins Aguilar Alexander Allison Alvarez Anderson Andrews Armstrong Arnold Ashby Atkins Austin Avery
Ayers Bailey Baker Baldwin Ballard Banks Barber Barker Barnes Barrett Barton Bates Baxter Beck Becker Bell Bennett
Benson Berry Bishop Black Blair Blake Boone Bowen Bowman Boyd Bradford Bradley Brady Brewer Briggs Brooks Brown
Bryant Buchanan Burgess Burke Burns Burton Bush Butler Byrd Caldwell Campbell Cannon Carlson Carpenter Carr Carroll
Carson Carter Casey Castillo Castro Chambers Chandler Chapman Chavez Christensen Clark Clayton Cobb Cohen Cole
Coleman Collins Conner Cook Cooper Copeland Cortez Cox Craig Crawford Cross Cruz Cummings Cunningham Curry Curtis
Dalton Daniels Davidson Davis Dawson Day Dean Delgado Dennis Diaz Dixon Dominguez Douglas Doyle Drake Duncan Dunn
Duran Eaton Edwards Elliott Ellis Erickson Espinoza Estrada Evans Farmer Ferguson Fernandez Fields Figueroa Fisher
Fitzgerald Fleming Fletcher Flores Flynn Forbes Ford Foster Fowler Fox Francis Franklin Frazier Freeman French
Fuller Garcia Gardner Garner Garrett Garza Gibbs Gibson Gilbert Gill Glover Gomez Gonzalez Goodman Goodwin Graham
Grant Graves Gray Green Greene Greer Griffin Griffith Gross Guerrero Gutierrez Guzman Hale Hall Hamilton Hammond
Hampton Hanson Hardin Hardy Harmon Harper Harrington Harris Harrison Hart Hartman Harvey Hawkins Hayes Haynes
Henderson Hensley Herrera Hicks Higgins Hill Hines Hodges Hoffman Holland Holloway Holmes Holt Hopkins Horton
Houston Howell Hubbard Hudson Huff Hughes Hunt Hunter Ingram Jackson Jacobs Jenkins Jennings Jensen Jimenez Johnson
Johnston Jones Jordan Joseph Keller Kelley Kennedy Klein Knight Lambert Lane Larson Lawson Leonard Lewis Lindsey
Little Logan Long Lopez Love Lowe Lucas Luna Lynch Lyons Mack Maldonado Malone Mann Manning Marsh Marshall Martin
Mason Matthews Maxwell McBride McCarthy McCormick McCoy McDaniel McDonald McGee McGuire McKinney Medina Mendez
Mendoza Meyer Miles Miller Mitchell Monroe Montgomery Moody Moore Morales Moran Moreno Morgan Morris Morrison
Morton Moss Mullins Murphy Murray Myers Nash Navarro Neal Nelson Newman Newton Nguyen Nichols Norman Norris Norton
Obrien Oliver Olson Ortega Ortiz Osborne Owen Padilla Palmer Parker Parks Parsons Patterson Payne Pearson Pena
Perez Perkins Perry
"""

FIRST, LAST = tuple(FIRST_NAMES.split()), tuple(LAST_NAMES.split())
