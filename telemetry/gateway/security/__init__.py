"""TLS, SASL and principals of a listener.

`authentication.py` follows SASL as it passes between client and broker, `sasl_tokens.py` reads the user in it,
`ssl_principal.py` the one of a certificate; `listener_tls.py` loads the listener's files, `listener_security.py` holds
what a connection needs of all this. Imports telemetry.wire and exporters.
"""
