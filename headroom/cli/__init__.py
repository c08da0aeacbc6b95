"""The command line: main.py, and a file or folder per command group. output/ prints tables, JSON and text.

Commands parse flags and print; the work is done by the packages they call. Heavy imports are inside commands.

cluster.py           shared by commands that query a cluster or the store: options, connection, error messages
cluster_facts.py     `headroom cluster show`: the facts of a cluster that figures depend on
config.py            `headroom config check | show | reference | reload`: validates, prints, documents and reloads the
                     settings
gateway.py           `headroom gateway check`: checks the prerequisites of a gateway before clients use it;
                     `share`: the share of the brokers' traffic that passes the gateways
options.py           of several commands: output formats, addresses, the data directory, error messages
plan.py              `headroom plan`: what a deployment needs, computed from measured figures
quarantine.py        `headroom quarantine list | show | replay`: pushes that could not be decoded or stored, their
                     senders and reasons
serve_api.py         asks the API of a running `headroom serve`
spool.py             `headroom spool status | inspect | skip`: the unfinished records in the spool of a data directory
store.py             `headroom store check`: whether a server, a user's profile, a proxy and replicas fit, before the
                     first row
subscriptions.py     `headroom subscriptions`: reads and alters a cluster's telemetry subscriptions; `preview`: whom one
                     would match
sql.py               `headroom sql`: runs one statement, streams the result to standard output, prints errors as one
                     line
status.py            `headroom status`: Headroom's own health in five lines, from the API of a running `headroom
                     serve`
verify_client.py     `headroom verify-client`: a sink that checks the telemetry of the client that connects to it
"""
