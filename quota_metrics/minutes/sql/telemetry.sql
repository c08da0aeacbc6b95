-- What clients reported of themselves: one row per client and window. The arrays of metric names are those of
-- quota_metrics/verdict/client_signals.py. `lags`: of the last ten windows that have a lag, the greatest of each
-- instance. The trend is that of the instance that is furthest behind: others push in other windows.
-- Windows begin at offset_ms + n * window_ms. Of the windows before the range only the lag is read. A gauge without a
-- sample is NaN; bit 1 of the flags says that a point has no value.
SELECT cluster, user, client_id, window_no * {window_ms:Int64} + {offset_ms:Int64} AS window_start_ms,
       produce_throttle_ms, fetch_throttle_ms, request_latency_ms, queue_time_ms, rebalances, records_lag,
       records_failed, records_refused, records_retried, outgoing_bytes, incoming_bytes,
       most_sent.1 AS top_sender, if(most_sent.2 > 0, most_sent.2 / arraySum(mapValues(sent)), NULL) AS top_sender_share,
       most_received.1 AS top_receiver,
       if(most_received.2 > 0, most_received.2 / arraySum(mapValues(received)), NULL) AS top_receiver_share,
       arrayMap(lag -> lag.1 - window_no,
                arrayFilter(lag -> mapContains(lag.2, most_behind.1), lags) AS of_most_behind) AS lag_windows,
       arrayMap(lag -> lag.2[most_behind.1], of_most_behind) AS lag_records
FROM (
    SELECT *, arrayReverseSort(pair -> (pair.2, pair.1), arrayZip(mapKeys(sent), mapValues(sent)))[1] AS most_sent,
           arrayReverseSort(pair -> (pair.2, pair.1), arrayZip(mapKeys(received), mapValues(received)))[1] AS most_received,
           arrayReverseSort(pair -> (pair.2, pair.1), arrayZip(mapKeys(lag), mapValues(lag)))[1] AS most_behind,
           groupArrayIf((window_no, lag), isNotNull(records_lag)) OVER (
               PARTITION BY cluster, user, client_id ORDER BY window_no
               RANGE BETWEEN 9 PRECEDING AND CURRENT ROW) AS lags
    FROM (
        SELECT cluster, toValidUTF8(p.principal) AS user, toValidUTF8(p.client_id) AS client_id,
               intDiv(toUnixTimestamp64Milli(ts) - {offset_ms:Int64}, {window_ms:Int64}) AS window_no,
               maxOrNullIf(value, metric IN {produce_throttle_ms:Array(String)}) AS produce_throttle_ms,
               maxOrNullIf(value, metric IN {fetch_throttle_ms:Array(String)}) AS fetch_throttle_ms,
               maxOrNullIf(value, metric IN {request_latency_ms:Array(String)}) AS request_latency_ms,
               maxOrNullIf(value, metric IN {queue_time_ms:Array(String)}) AS queue_time_ms,
               sumOrNullIf(value, metric IN {rebalances:Array(String)}) AS rebalances,
               maxOrNullIf(value, metric IN {records_lag:Array(String)}) AS records_lag,
               maxMapIf(map(client_instance_id, value), metric IN {records_lag:Array(String)}) AS lag,
               sumOrNullIf(value, metric IN {records_failed:Array(String)}) AS records_failed,
               sumOrNullIf(value, metric IN {records_refused:Array(String)}) AS records_refused,
               sumOrNullIf(value, metric IN {records_retried:Array(String)}) AS records_retried,
               sumOrNullIf(value, metric IN {outgoing_bytes:Array(String)}) AS outgoing_bytes,
               sumOrNullIf(value, metric IN {incoming_bytes:Array(String)}) AS incoming_bytes,
               sumMapIf(map(toString(client_instance_id), value), metric IN {outgoing_bytes:Array(String)}) AS sent,
               sumMapIf(map(toString(client_instance_id), value), metric IN {incoming_bytes:Array(String)}) AS received
        FROM points AS p FINAL
        WHERE {telemetry:UInt8} AND ts >= fromUnixTimestamp64Milli({from_ms:Int64} - 9 * {window_ms:Int64})
          AND ts < fromUnixTimestamp64Milli({to_ms:Int64}) AND metric IN {metrics:Array(String)}
          AND (ts >= fromUnixTimestamp64Milli({from_ms:Int64}) OR metric IN {records_lag:Array(String)})
          AND isFinite(value) AND bitAnd(flags, 1) = 0 AND ({cluster:String} = '' OR cluster = {cluster:String})
        GROUP BY cluster, user, client_id, window_no
    )
)
WHERE window_no * {window_ms:Int64} + {offset_ms:Int64} >= {from_ms:Int64}
