"""The steps of the jobs: DataFrame -> DataFrame, Column -> Column. No I/O, no clock, no session.

demand.py               what the clients of each bucket want, from their usage in steps of five minutes, also as a
                        series of numbers from which the jobs forecast
forecast_members.py     members of a forecast that repeat earlier days, and the share that each member deserves
forecast_model.py       forecasts utilisation in steps of five minutes, and when it reaches the limit
forecast_outlook.py     forecasts the greatest utilisation of each of the next 168 hours by drawing earlier days
forecast_scores.py      scores forecasts on history with a rolling origin, against simple forecasts and a library's
verdicts.py             the verdict on each client in each window: usage is correlated with telemetry, instances and
                        teams, then the windows of a client are folded in order by `quota_metrics.verdict`, the same
                        functions as in the service
"""
