-- The Spark jobs: read all, write their results, clear what they staged.
-- CREATE USER somebody IDENTIFIED ... DEFAULT ROLE headroom_jobs SETTINGS PROFILE 'headroom_jobs' makes a user of it.

CREATE ROLE IF NOT EXISTS headroom_jobs;

GRANT SELECT ON headroom.* TO headroom_jobs;

GRANT INSERT ON headroom.quota_utilization TO headroom_jobs;
GRANT INSERT, ALTER DELETE ON headroom.quota_utilization_staging TO headroom_jobs;
GRANT INSERT ON headroom.quota_utilization_windows TO headroom_jobs;
GRANT INSERT ON headroom.usage_1m TO headroom_jobs;
GRANT INSERT ON headroom.usage_1m_windows TO headroom_jobs;
GRANT INSERT ON headroom.throttle_forecast TO headroom_jobs;
GRANT INSERT ON headroom.quota_suggestions TO headroom_jobs;
GRANT INSERT ON headroom.job_runs TO headroom_jobs;

-- Only a cluster needs these: the tables below the Distributed ones.
GRANT INSERT ON headroom.quota_utilization_local TO headroom_jobs;
GRANT INSERT, ALTER DELETE ON headroom.quota_utilization_staging_local TO headroom_jobs;
GRANT INSERT ON headroom.quota_utilization_windows_local TO headroom_jobs;
GRANT INSERT ON headroom.usage_1m_local TO headroom_jobs;
GRANT INSERT ON headroom.usage_1m_windows_local TO headroom_jobs;
GRANT INSERT ON headroom.throttle_forecast_local TO headroom_jobs;
GRANT INSERT ON headroom.quota_suggestions_local TO headroom_jobs;
GRANT INSERT ON headroom.job_runs_local TO headroom_jobs;

-- An insert returns when the shards have its rows; what is joined or looked up is sent to all shards.
CREATE SETTINGS PROFILE IF NOT EXISTS headroom_jobs
    SETTINGS session_timezone = 'UTC', distributed_foreground_insert = 1, distributed_product_mode = 'global';
