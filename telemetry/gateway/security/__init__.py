"""TLS, SASL and principals of a listener.

`client_identity.py` follows SASL exchanges between client and broker, `sasl_tokens.py` reads the user from a token and
knows the owners of delegation tokens, `ssl_principal.py` makes the user of a certificate's subject;
`listener_security.py` loads the listener's files and combines these for a connection.
"""
