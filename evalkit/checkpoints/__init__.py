"""Parameters from anywhere: a run, an archive, a released folder, a name on the hub."""
