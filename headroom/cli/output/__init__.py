"""Prints results on standard output: tables, JSON, KIP-546's text.

clients.py        the table of `headroom top`: a line for each client and quota, from the rows of `/api/v1/headroom`
cluster.py        the facts of a cluster on standard output, from their JSON form (quota_metrics.cluster.document)
forms.py          the output formats of commands
payers.py         the table of payers: principals or source addresses, what they cost and what was refused them
quota_plan.py     prints plans and drift of quotas: tables, JSON, markdown
quotas.py         quotas and resolutions on standard output: KIP-546's text, tables, JSON
subscriptions.py  prints the result of `headroom subscriptions preview` as a table
tables.py         a table on standard output: aligned lines, in a pipe of any length, on a terminal as wide as it is
topics.py         the table of `headroom top --by topic`: a line for each topic of a client and direction, most bytes
                  first
verdicts.py       the verdicts on a client on standard output: a table, JSON, JUnit's XML
what_if.py        prints the result of `headroom quotas what-if` as a table or JSON
"""
