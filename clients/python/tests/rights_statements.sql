GRANT INSERT, SELECT (id, fingerprint, fence, state, gone, expires_at, forget_at, status, content_type, head, body) ON stet.records TO shop;
GRANT USAGE ON SEQUENCE stet.records_fence TO shop;
