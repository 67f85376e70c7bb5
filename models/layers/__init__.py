"""What mixers are made of: shapes, the contract of a mixer, norms, linear maps, convolutions, positions."""
