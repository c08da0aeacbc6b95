-- Which client software there is, and what is known to be wrong with it.

-- `fixed_in` is the first version without the issue, `since` the first with it. Only what concerns telemetry.
CREATE VIEW IF NOT EXISTS headroom.known_client_issues AS
SELECT library, since, fixed_in, issue
FROM values(
    'library String, since String, fixed_in String, issue String',
    ('librdkafka', '2.5.0', '2.5.3',
     'its process ends on an assertion when it has none of the metrics that it is asked for (librdkafka 4833)'),
    ('librdkafka', '2.5.3', '2.10.1',
     'pushes null when it has none of the metrics that it is asked for: brokers close the connection, Headroom does not (librdkafka 5106)'),
    ('franz-go', '1.20.4', '1.20.5', 'client metrics do not work'),
    ('franz-go', '1.0.0', '1.21.4', 'wrong .rate and .avg, no terminating push')
);

-- One row per software that client instances named when they connected. The library is what pushes: a binding of
-- librdkafka names itself, and has librdkafka's version in its own (2.16.1-rdkafka-2.16.0), or for its own.
-- `instances` are those heard of in 15 minutes, three times the longest push interval, that sent no terminating push.
CREATE VIEW IF NOT EXISTS headroom.client_software AS
WITH
    software AS
    (
        SELECT
            cluster, software_name, software_version,
            countIf(seen > now() - INTERVAL 15 MINUTE AND NOT terminated) AS instances,
            max(seen) AS last_seen,
            extract(software_version, 'rdkafka-v?(\\d+(?:\\.\\d+)+)') AS bound_version
        FROM (SELECT * EXCEPT last_seen, last_seen AS seen FROM headroom.client_instances FINAL)
        GROUP BY cluster, software_name, software_version
    ),
    libraries AS
    (
        SELECT
            *,
            multiIf(
                bound_version != '' OR software_name IN ('confluent-kafka-go', 'confluent-kafka-dotnet'), 'librdkafka',
                software_name = 'kgo', 'franz-go',
                software_name
            ) AS library,
            if(bound_version != '', bound_version, extract(software_version, '^v?(\\d+(?:\\.\\d+)+)')) AS library_version,
            arrayMap(part -> toUInt32OrZero(part), splitByChar('.', library_version)) AS numbers
        FROM software
    ),
    issues AS
    (
        SELECT
            library, issue,
            arrayMap(part -> toUInt32(part), splitByChar('.', since)) AS first,
            arrayMap(part -> toUInt32(part), splitByChar('.', fixed_in)) AS fixed
        FROM headroom.known_client_issues
    )
SELECT
    cluster, software_name, software_version, library, library_version, instances, last_seen,
    arrayStringConcat(
        arrayMap(
            known -> tupleElement(known, 2),
            arrayFilter(
                known -> tupleElement(known, 1) = library AND numbers >= tupleElement(known, 3)
                         AND numbers < tupleElement(known, 4),
                (SELECT groupArray((library, issue, first, fixed)) FROM issues)
            )
        ),
        '; '
    ) AS known_issue
FROM libraries;
