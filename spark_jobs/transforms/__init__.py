"""Steps that jobs are made of: DataFrame -> DataFrame, Column -> Column. No I/O, no clock, no session."""
