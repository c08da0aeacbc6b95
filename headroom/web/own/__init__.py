"""An application's own view: what a token of `web.tokens` may see, at `/api/v1/me` and `/me`, and nowhere else.

scopes.py   which clients a token sees; which paths it reaches
me.py       the rows of these clients, with what the application can pace itself by
routes.py   the document and the page
"""
