-- People, dashboards, `headroom sql`, the pages: reads what Headroom keeps and changes nothing.
-- CREATE USER somebody IDENTIFIED ... DEFAULT ROLE headroom_readers SETTINGS PROFILE 'headroom_readers' makes a user of it.

CREATE ROLE IF NOT EXISTS headroom_readers;

GRANT SELECT ON headroom.* TO headroom_readers;

-- The limits are those of the managed server's reader (docs/clickhouse.md); raise them for larger ones. max_result_bytes is
-- CONST, because a shard is asked without a limit, which a minimum would turn into the least one.
CREATE SETTINGS PROFILE IF NOT EXISTS headroom_readers
    SETTINGS session_timezone = 'UTC', readonly = 2, allow_ddl = 0 CONST, max_execution_time = 60 MIN 1 MAX 300,
        max_memory_usage = 1073741824 MIN 1 MAX 4294967296, max_result_bytes = 2147483648 CONST;
