"""TLS, SASL and principals of a listener.

`authentication.py` follows SASL exchanges between client and broker, `sasl_tokens.py` reads the user from a token,
`ssl_principal.py` from a certificate; `listener_tls.py` loads the listener's files, `listener_security.py` combines
these for a connection. Imports telemetry.wire and exporters.
"""
