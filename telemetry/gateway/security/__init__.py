"""TLS, SASL and principals of a listener.

`authentication.py` follows SASL exchanges between client and broker, `sasl_tokens.py` reads the user from a token,
`token_owners.py` knows the owners of delegation tokens, `ssl_principal.py` reads the user from a certificate;
`listener_tls.py` loads the listener's files, `listener_security.py` combines these for a connection. Imports
telemetry.wire and exporters.
"""
