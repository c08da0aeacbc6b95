"""The steps of the jobs: DataFrame -> DataFrame, Column -> Column. No I/O, no clock, no session."""
