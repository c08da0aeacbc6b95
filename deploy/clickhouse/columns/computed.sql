-- What else is stored of a client at a broker when its window was computed.
    `computed_at`      DateTime64(3, 'UTC')    COMMENT 'when the window was computed; the rows of the newest count',
    `is_worst`         UInt8                   COMMENT '1: the worst broker of this client in this window',
    `pushes`           UInt64                  COMMENT 'their pushes',
    `last_seen`        DateTime64(3, 'UTC')    COMMENT 'when telemetry was heard of last; 1970 without instances',
    `is_onset`         UInt8                   COMMENT '1: the first minute at warn or muted after a calm one, with at most one just below warn between them; cause is told from here',
    `own_reason`       String                  COMMENT 'the reason without the name of another client',
    `own_cause`        String                  COMMENT 'the cause without the name of another client',
    `client_place`     UInt32                  COMMENT 'place of the client among those of the window by cluster, user and client id: sorts as these do, in less time'
