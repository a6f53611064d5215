-- stet_settle and stet_release are again as they were. Messages that wait in records stay
-- there, and are read by programs that know this step.
DROP TABLE "stet"."records_emitted";
DROP FUNCTION "stet"."stet_emit", "stet"."stet_unsent";

CREATE OR REPLACE FUNCTION "stet"."stet_settle"(claim text, status integer DEFAULT NULL, headers jsonb DEFAULT NULL, content_type text DEFAULT NULL, body bytea DEFAULT NULL,
	failed boolean DEFAULT NULL, gone boolean DEFAULT false, result interval DEFAULT '24 hours', tombstone interval DEFAULT NULL,
	max_result integer DEFAULT 1048576) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET enable_bitmapscan = off SET plan_cache_mode = force_generic_plan AS $stet$
#variable_conflict use_column
DECLARE
	c       record;
	top     bytea    := "stet"."stet_fields"(headers);
	media   text     := nullif(content_type, '');
	content bytea    := coalesce(body, ''::bytea);
	code    integer  := status;
	empty   boolean  := gone;
	-- In seconds: what a day or a month is depends on the session's time zone.
	keep    double precision := extract(epoch FROM result);
	forget  double precision := coalesce(extract(epoch FROM tombstone), greatest(keep, 2592000));
	moment  timestamptz      := clock_timestamp();
	size    bigint   := octet_length(content)::bigint + coalesce(octet_length(top), 0) + coalesce(octet_length(media), 0);
	watched boolean;
BEGIN
	SELECT * INTO c FROM "stet"."stet_claim"(claim);
	IF code NOT BETWEEN 200 AND 999 THEN
		RAISE EXCEPTION USING ERRCODE = 'ST001', MESSAGE = format('stet: the status is %s; it must be 200 to 999, or NULL for none', code);
	ELSIF octet_length(convert_to(media, 'UTF8')) > 255 OR media COLLATE "C" ~ '[[:cntrl:]]' THEN
		RAISE EXCEPTION USING ERRCODE = 'ST001', MESSAGE = 'stet: the content type has more than 255 bytes, or a control character';
	ELSIF empty IS NULL THEN
		RAISE EXCEPTION USING ERRCODE = 'ST001', MESSAGE = 'stet: gone must not be NULL';
	ELSIF keep IS NULL OR keep <= 0 OR forget < keep OR forget > 3155760000 THEN
		RAISE EXCEPTION USING ERRCODE = 'ST001', MESSAGE = format('stet: the result is kept for %s and its tombstone for %s; the first must be longer than nothing, the second not shorter, and at most 100 years',
			coalesce(result::text, 'NULL'), coalesce(tombstone::text, 'NULL'));
	ELSIF coalesce(max_result, 0) NOT BETWEEN 1 AND 67108864 THEN
		RAISE EXCEPTION USING ERRCODE = 'ST001', MESSAGE = 'stet: max_result must be 1 to 67108864 bytes';
	ELSIF NOT empty AND size > max_result THEN
		RAISE EXCEPTION USING ERRCODE = 'ST001', MESSAGE = format('stet: the result has %s bytes, and max_result is %s', size, max_result),
			HINT = 'Settle without it (gone => true), or keep more (max_result).';
	END IF;
	failed := coalesce(failed, code >= 500, false);
	IF empty THEN
		code := NULL;
		media := NULL;
		top := NULL;
		content := NULL;
	END IF;
	UPDATE "stet"."records" r SET state = CASE WHEN failed THEN 3 ELSE 2 END, gone = empty, status = code, content_type = media, head = top, body = content,
		settled_at = moment, expires_at = moment + make_interval(secs => keep), forget_at = moment + make_interval(secs => forget),
		due_at = moment + make_interval(secs => CASE WHEN empty THEN forget ELSE keep END),
		lease_until = NULL, run_due = NULL, relay_due = NULL, cancel_at = NULL, work = NULL, notes = NULL
	WHERE r.id = c.id AND r.owner = c.owner AND r.fence = c.fence AND r.state IN (1, 5)
	RETURNING r.watched INTO watched;
	IF NOT FOUND THEN
		PERFORM "stet"."stet_fenced"();
	END IF;
	PERFORM "stet"."stet_tell"(c.id, watched);
END
$stet$;

CREATE OR REPLACE FUNCTION "stet"."stet_release"(claim text, keep interval DEFAULT '24 hours') RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET enable_bitmapscan = off SET plan_cache_mode = force_generic_plan AS $stet$
#variable_conflict use_column
DECLARE
	c       record;
	span    double precision := extract(epoch FROM keep);
	moment  timestamptz      := clock_timestamp();
	until   timestamptz;
	watched boolean;
BEGIN
	SELECT * INTO c FROM "stet"."stet_claim"(claim);
	IF span IS NULL OR span <= 0 OR span > 3155760000 THEN
		RAISE EXCEPTION USING ERRCODE = 'ST001', MESSAGE = 'stet: the retention of a released record must be positive, and at most 100 years';
	END IF;
	until := moment + make_interval(secs => span);
	UPDATE "stet"."records" r SET state = CASE WHEN r.work IS NULL THEN 4 ELSE 6 END, settled_at = moment,
		forget_at = CASE WHEN r.work IS NULL THEN until END, due_at = CASE WHEN r.work IS NULL THEN until END,
		lease_until = CASE WHEN r.work IS NOT NULL THEN moment END, run_due = CASE WHEN r.work IS NOT NULL THEN moment END
	WHERE r.id = c.id AND r.owner = c.owner AND r.fence = c.fence AND r.state IN (1, 5)
	RETURNING r.watched INTO watched;
	IF NOT FOUND THEN
		PERFORM "stet"."stet_fenced"();
	END IF;
	PERFORM "stet"."stet_tell"(c.id, watched);
END
$stet$;

DELETE FROM "stet"."records_schema" WHERE version = 5;
