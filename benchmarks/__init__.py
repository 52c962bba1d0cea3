"""What measures: a mesh of real processes under a fake model that costs no time."""
