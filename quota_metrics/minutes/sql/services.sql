-- The services that said lately that they compute, by the store's clock.
SELECT service FROM headroom_services
WHERE seen_at > now64(3, 'UTC') - toIntervalMillisecond({gone_ms:UInt32})
GROUP BY service
LIMIT 10000
