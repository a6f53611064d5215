-- Functions by which any client of PostgreSQL takes part, in its own transaction. See
-- docs/sql.md. They lock by the same numbers as package postgres, draw fences from the
-- same sequence and write the same rows. Internal functions
-- are not granted to any role. They call one another with exactly the types
-- that are declared: a function of the same name that fits better, of another role that
-- may create one in this schema, would be called in their place, with their rights.
--
-- stet_begin_raw and stet_settle_raw take digests, lock numbers and stored bytes from the client. The
-- functions above them compute these, for psql.

-- SHA-256 of parts, each after its length in four bytes. These are in PL/pgSQL because
-- functions in SQL are planned anew at each call.
CREATE FUNCTION "stet"."stet_digest"(parts bytea[]) RETURNS bytea
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $stet$
DECLARE
	part bytea;
	b    bytea := '';
BEGIN
	FOREACH part IN ARRAY parts LOOP
		b := b || int4send(octet_length(part)) || part;
	END LOOP;
	RETURN sha256(b);
END
$stet$;

-- The same, of what belongs to these tables.
CREATE FUNCTION "stet"."stet_own"(kind text, parts bytea[]) RETURNS bytea
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $stet$
BEGIN
	RETURN "stet"."stet_digest"(ARRAY[convert_to(kind, 'UTF8'), convert_to('stet', 'UTF8'), convert_to('records', 'UTF8')] || parts);
END
$stet$;

-- The first eight bytes as a number.
CREATE FUNCTION "stet"."stet_number"(digest bytea) RETURNS bigint
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $stet$
BEGIN
	RETURN ('x' || encode(substr(digest, 1, 8), 'hex'))::bit(64)::bigint;
END
$stet$;

CREATE FUNCTION "stet"."stet_id"(scope text, key text, namespace text DEFAULT '') RETURNS bytea
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $stet$
BEGIN
	RETURN substr("stet"."stet_digest"(ARRAY['stet scope 1', convert_to(namespace, 'UTF8'), convert_to(scope, 'UTF8')]), 1, 8)
		|| substr("stet"."stet_digest"(ARRAY['stet id 2', convert_to(namespace, 'UTF8'), convert_to(scope, 'UTF8'), convert_to(key, 'UTF8')]), 1, 24);
END
$stet$;

CREATE FUNCTION "stet"."stet_fingerprint"(parts bytea[], version integer DEFAULT 1) RETURNS bytea
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $stet$
DECLARE
	first bytea;
BEGIN
	IF version IS NULL OR version NOT IN (1, 2) THEN
		RAISE EXCEPTION USING ERRCODE = 'ST001', MESSAGE = format('stet: the version of a fingerprint is %s; it must be 1, or 2 where the body is canonical JSON', coalesce(version::text, 'NULL'));
	ELSIF parts IS NULL OR array_ndims(parts) > 1 OR array_position(parts, NULL) IS NOT NULL THEN
		RAISE EXCEPTION USING ERRCODE = 'ST001', MESSAGE = 'stet: a fingerprint is made of a list of parts, none of which is NULL';
	END IF;
	first := substr(int4send(version), 4);
	RETURN first || sha256(first || coalesce((SELECT string_agg(int8send(octet_length(p)) || p, ''::bytea ORDER BY n)
		FROM unnest(parts) WITH ORDINALITY AS u (p, n)), ''::bytea));
END
$stet$;

-- A text in what an engine has written at a byte, after its length, and the byte after
-- it; or a number, without a text.
CREATE FUNCTION "stet"."stet_part"(b bytea, INOUT at integer, texts boolean, OUT n integer, OUT part text)
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $stet$
DECLARE
	octet integer := 128;
	shift integer := 0;
BEGIN
	n := 0;
	WHILE octet >= 128 AND shift < 28 AND at < octet_length(b) LOOP
		octet := get_byte(b, at);
		n := n | ((octet & 127) << shift);
		at := at + 1;
		shift := shift + 7;
	END LOOP;
	IF octet >= 128 OR texts AND (at + n > octet_length(b) OR position(decode('00', 'hex') IN substr(b, at + 1, n)) > 0) THEN
		RAISE EXCEPTION USING ERRCODE = 'ST005', MESSAGE = 'stet: the stored record cannot be read';
	END IF;
	IF texts THEN
		part := convert_from(substr(b, at + 1, n), 'LATIN1');
		at := at + n;
	END IF;
END
$stet$;

-- The header fields in the head of an outcome, and its media type if that is in it, too.
CREATE FUNCTION "stet"."stet_head"(head bytea, OUT headers jsonb, OUT content_type text)
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $stet$
DECLARE
	p      record;
	fields integer;
	name   text;
	list   jsonb;
BEGIN
	headers := '{}';
	IF head IS NULL OR octet_length(head) = 0 THEN
		RETURN;
	END IF;
	CASE get_byte(head, 0)
	WHEN 1 THEN
		SELECT * INTO p FROM "stet"."stet_part"(head, 7, true);
		content_type := nullif(p.part, '');
		SELECT * INTO p FROM "stet"."stet_part"(head, p.at, false);
		fields := p.n;
		FOR i IN 1..fields LOOP
			SELECT * INTO p FROM "stet"."stet_part"(head, p.at, true);
			name := p.part;
			list := '[]';
			SELECT * INTO p FROM "stet"."stet_part"(head, p.at, false);
			FOR j IN 1..p.n LOOP
				SELECT * INTO p FROM "stet"."stet_part"(head, p.at, true);
				list := list || to_jsonb(p.part);
			END LOOP;
			IF left(name, 1) <> ':' THEN -- the middleware's own, which is never sent
				headers := headers || jsonb_build_object(name, list);
			END IF;
		END LOOP;
	WHEN 2 THEN
		RAISE EXCEPTION USING ERRCODE = 'ST004', MESSAGE = 'stet: the stored outcome is encrypted, and SQL has no keys',
			HINT = 'Use these functions with records that no engine encrypts: in a namespace or tables of their own.';
	WHEN 3 THEN
		BEGIN
			headers := convert_from(substr(head, 2), 'UTF8')::jsonb;
		EXCEPTION WHEN data_exception OR statement_too_complex THEN
			headers := NULL;
		END;
		IF jsonb_typeof(headers) IS DISTINCT FROM 'object' OR headers @? 'strict $.* ? (@.type() != "array")' OR headers @? '$.*[*] ? (@.type() != "string")' THEN
			RAISE EXCEPTION USING ERRCODE = 'ST005', MESSAGE = 'stet: the header fields of the stored outcome cannot be read';
		END IF;
	ELSE
		RAISE EXCEPTION USING ERRCODE = 'ST005', MESSAGE = 'stet: the stored outcome is of a version that these functions do not know';
	END CASE;
END
$stet$;

-- Begins the operation of an ID. A client computes the arguments (docs/sql.md): the digests, the number of
-- the key's lock, and two numbers of a lock that publishes the fingerprint. Wrong lock numbers
-- cannot cause a second run: the primary key decides.
CREATE FUNCTION "stet"."stet_begin_raw"(id bytea, scope bytea, fingerprint bytea, owner bytea, run_lock bigint, print_lock integer, print integer,
	class text, name text, ref text, result double precision,
	OUT action text, OUT fence bigint, OUT attempt integer, OUT state text, OUT status integer, OUT content_type text, OUT head bytea, OUT body bytea, OUT forget_at timestamptz)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET enable_seqscan = off AS $stet$
#variable_conflict use_variable
DECLARE
	moment timestamptz := clock_timestamp(); -- a procedure of many transactions is one statement
	due    timestamptz; -- the result expires then; written now, so that settling changes no index
	concurrent boolean := false;
	other  boolean;
	locked boolean;
	there  boolean;
	r      record;
BEGIN
	IF (octet_length(id) = 32 AND octet_length(scope) = 32 AND octet_length(fingerprint) = 33 AND octet_length(owner) = 16 AND substr(id, 1, 8) = substr(scope, 1, 8)
		AND run_lock IS NOT NULL AND print_lock IS NOT NULL AND print IS NOT NULL AND result > 0 AND result <= 3155760000
		AND octet_length(class) <= 255 AND octet_length(name) <= 255 AND octet_length(ref) <= 255
		AND (class || name || ref) COLLATE "C" !~ '[[:cntrl:]]' AND NOT starts_with(ref, 'sealed:')) IS NOT TRUE THEN
		RAISE EXCEPTION USING ERRCODE = 'ST001', MESSAGE = 'stet: an argument of stet_begin_raw is not acceptable',
			HINT = 'id and scope have 32 bytes, of which the first 8 are equal; fingerprint 33, owner 16; labels at most 255 without control characters, and ref does not begin with sealed:; result is a positive number of seconds.';
	END IF;
	due := moment + make_interval(secs => result);
	-- Each statement sees rows that were committed before it began. Later changes are
	-- read again. The look comes first: to insert a record that there is would wait for a transaction
	-- that changes it, such as a late settle.
	FOR try IN 1..16 LOOP
		SELECT t.fingerprint, t.state, t.fence, t.attempt, t.gone, t.lease_until, t.run_due, t.expires_at, t.status, t.content_type, t.head, t.body,
			t.forget_at, coalesce(t.state = 1 AND t.lease_until <= moment AND t.run_due IS NULL AND t.outside = t.owner, false) AS void
		INTO r FROM "stet"."records" t WHERE t.id = id;
		there := FOUND AND (r.forget_at IS NULL OR r.forget_at > moment);
		IF there THEN
			IF r.fingerprint <> fingerprint THEN
				action := 'mismatch';
				RETURN;
			ELSIF r.state <> 4 AND NOT r.void THEN
				fence := r.fence;
				attempt := r.attempt;
				state := (ARRAY['running', 'completed', 'failed', 'retryable', 'unknown', 'accepted'])[r.state];
				IF r.state NOT IN (2, 3) THEN
					action := CASE WHEN r.state = 5 OR r.state = 1 AND r.lease_until <= moment AND r.run_due IS NULL THEN 'unknown' ELSE 'in_flight' END;
				ELSIF r.gone OR r.expires_at <= moment THEN
					action := 'expired';
				ELSE
					action := 'replay';
					status := r.status;
					content_type := r.content_type;
					head := r.head;
					body := coalesce(r.body, ''::bytea);
					forget_at := r.forget_at;
				END IF;
				RETURN;
			END IF;
		END IF;
		IF pg_try_advisory_xact_lock(run_lock) THEN
			locked := pg_try_advisory_xact_lock(print_lock, print);
			IF r.fence IS NULL THEN
				INSERT INTO "stet"."records" AS t (id, scope, fingerprint, owner, fence, claimed_at, attempt, state, class, name, ref, expires_at, due_at, unsettled)
				VALUES (id, scope, fingerprint, owner, nextval('"stet"."records_fence"'), moment, 1, 1, class, name, ref, due, due, true)
				ON CONFLICT ON CONSTRAINT "records_pkey" DO NOTHING RETURNING t.fence, t.attempt INTO fence, attempt;
			ELSE
				-- Another transaction may be changing it, such as a late settle or a sweep.
				PERFORM FROM "stet"."records" t WHERE t.id = id FOR UPDATE SKIP LOCKED;
				EXIT WHEN NOT FOUND;
				UPDATE "stet"."records" t SET scope = scope, fingerprint = fingerprint, owner = owner, fence = nextval('"stet"."records_fence"'),
					claimed_at = moment, attempt = CASE WHEN there THEN t.attempt + 1 ELSE 1 END, state = 1,
					class = class, name = name, ref = ref, gone = false, watched = false, status = NULL, content_type = NULL, head = NULL, body = NULL,
					lease_until = NULL, settled_at = NULL, expires_at = due, forget_at = NULL, due_at = due, unsettled = true,
					run_due = NULL, relay_due = NULL, cancel_at = NULL, work = NULL, notes = CASE WHEN there THEN t.notes END
				WHERE t.id = id AND t.fence = r.fence AND (t.state = 4 OR t.forget_at <= moment
					OR t.state = 1 AND t.lease_until <= moment AND t.run_due IS NULL AND t.outside = t.owner)
				RETURNING t.fence, t.attempt INTO fence, attempt;
			END IF;
			IF FOUND THEN
				action := 'run';
				state := 'running';
				RETURN;
			END IF;
		ELSE
			-- Does the transaction that has the lock ask for something else?
			other := EXISTS (
				SELECT FROM pg_locks k JOIN pg_locks f ON f.virtualtransaction = k.virtualtransaction AND f.pid IS NOT DISTINCT FROM k.pid
				WHERE k.locktype = 'advisory' AND k.objsubid = 1 AND k.granted AND k.mode = 'ExclusiveLock'
					AND k.database = (SELECT d.oid FROM pg_database d WHERE d.datname = current_database())
					AND k.classid::bigint = (run_lock >> 32) & 4294967295 AND k.objid::bigint = run_lock & 4294967295
					AND f.locktype = 'advisory' AND f.objsubid = 2 AND f.granted AND f.mode = 'ExclusiveLock' AND f.database = k.database
					AND f.classid::bigint = print_lock::bigint & 4294967295 AND f.objid::bigint <> print::bigint & 4294967295);
			EXIT WHEN NOT other;
			IF concurrent AND NOT there THEN -- the record, read since, does not say that it has ended
				action := 'mismatch';
				RETURN;
			END IF;
			concurrent := true;
		END IF;
	END LOOP;
	action := 'in_flight';
	state := 'running';
END
$stet$;

CREATE FUNCTION "stet"."stet_begin"(scope text, key text, fingerprint bytea DEFAULT NULL, namespace text DEFAULT '',
	class text DEFAULT '', name text DEFAULT '', ref text DEFAULT '',
	OUT action text, OUT claim text, OUT state text, OUT status integer, OUT headers jsonb, OUT content_type text, OUT body bytea,
	OUT id bytea, OUT fence bigint, OUT attempt integer)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET enable_seqscan = off AS $stet$
#variable_conflict use_variable
DECLARE
	finger bytea := coalesce(fingerprint, decode(repeat('00', 33), 'hex'));
	owner  bytea := uuid_send(gen_random_uuid());
	l      record;
	r      record;
BEGIN
	IF coalesce(octet_length(convert_to(scope, 'UTF8')), 0) NOT BETWEEN 1 AND 1024 OR coalesce(octet_length(convert_to(key, 'UTF8')), 0) NOT BETWEEN 1 AND 1024 THEN
		RAISE EXCEPTION USING ERRCODE = 'ST001', MESSAGE = format('stet: the scope has %s bytes and the key %s; each must have 1 to 1024',
			coalesce(octet_length(convert_to(scope, 'UTF8')), 0), coalesce(octet_length(convert_to(key, 'UTF8')), 0));
	ELSIF octet_length(finger) <> 33 THEN
		RAISE EXCEPTION USING ERRCODE = 'ST001', MESSAGE = format('stet: the fingerprint has %s bytes; it must have 33, as stet_fingerprint makes it, or be NULL', octet_length(finger));
	ELSIF coalesce(octet_length(convert_to(namespace, 'UTF8')), 1025) > 1024 THEN
		RAISE EXCEPTION USING ERRCODE = 'ST001', MESSAGE = 'stet: the namespace is NULL, or has more than 1024 bytes';
	END IF;
	FOR l IN SELECT * FROM (VALUES ('class', class), ('name', name), ('ref', ref)) AS v (what, label) LOOP
		IF l.label IS NULL OR octet_length(convert_to(l.label, 'UTF8')) > 255 OR l.label COLLATE "C" ~ '[[:cntrl:]]' THEN
			RAISE EXCEPTION USING ERRCODE = 'ST001', MESSAGE = format('stet: the %s is NULL, has more than 255 bytes or has a control character', l.what);
		END IF;
	END LOOP;
	IF starts_with(ref, 'sealed:') THEN
		RAISE EXCEPTION USING ERRCODE = 'ST001', MESSAGE = 'stet: the ref begins with sealed:, which is the mark of an encrypted one';
	END IF;
	id := "stet"."stet_id"(scope, key, namespace);
	SELECT * INTO r FROM "stet"."stet_begin_raw"(id, "stet"."stet_digest"(ARRAY['stet scope 1', convert_to(namespace, 'UTF8'), convert_to(scope, 'UTF8')]), finger, owner,
		"stet"."stet_number"("stet"."stet_own"('run'::text, ARRAY[id])),
		("stet"."stet_number"("stet"."stet_own"('finger'::text, ARRAY[id])) << 32 >> 32)::integer,
		("stet"."stet_number"("stet"."stet_digest"(ARRAY[finger])) << 32 >> 32)::integer, class, name, ref, 86400::double precision);
	action := r.action;
	state := r.state;
	fence := r.fence;
	attempt := r.attempt;
	IF action = 'run' THEN
		claim := 'c1.' || encode(id, 'hex') || '.' || encode(owner, 'hex') || '.' || lpad(to_hex(fence), 16, '0');
	ELSIF action = 'replay' THEN
		status := r.status;
		body := r.body;
		SELECT h.headers, coalesce(r.content_type, h.content_type) INTO headers, content_type FROM "stet"."stet_head"(r.head) h;
	END IF;
END
$stet$;

-- The parts of a claim.
CREATE FUNCTION "stet"."stet_claim"(claim text, OUT id bytea, OUT owner bytea, OUT fence bigint)
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $stet$
BEGIN
	IF claim IS NULL OR claim COLLATE "C" !~ '^c1[.][0-9a-f]{64}[.][0-9a-f]{32}[.][0-7][0-9a-f]{15}$' THEN
		RAISE EXCEPTION USING ERRCODE = 'ST001', MESSAGE = 'stet: this is not a claim; stet_begin returns one, and so does stet proxy in a header';
	END IF;
	id := decode(substr(claim, 4, 64), 'hex');
	owner := decode(substr(claim, 69, 32), 'hex');
	fence := "stet"."stet_number"(decode(substr(claim, 102), 'hex'));
END
$stet$;

-- The error for a claim that was replaced.
CREATE FUNCTION "stet"."stet_fenced"() RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $stet$
BEGIN
	RAISE EXCEPTION USING ERRCODE = 'ST002', MESSAGE = 'stet: the claim is not the newest of its operation, or has ended',
		HINT = 'Roll back. Another run, or an outcome, has replaced it; begin again to read it.';
END
$stet$;

-- Wakes callers that wait for the end of a run.
CREATE FUNCTION "stet"."stet_tell"(id bytea) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $stet$
BEGIN
	PERFORM pg_notify('stet_' || encode(substr("stet"."stet_own"('channel'::text, '{}'::bytea[]), 1, 8), 'hex'), encode(id, 'hex'));
END
$stet$;

-- The number of the lock that callers hold which wait for a transaction.
CREATE FUNCTION "stet"."stet_wait_lock"(id bytea) RETURNS bigint
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $stet$
BEGIN
	RETURN "stet"."stet_number"(substr(id, 9)) # "stet"."stet_number"("stet"."stet_own"('wait'::text, '{}'::bytea[]));
END
$stet$;

-- Header fields as they are stored: names as HTTP libraries write them, each with a list
-- of values.
CREATE FUNCTION "stet"."stet_fields"(headers jsonb) RETURNS bytea
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $stet$
DECLARE
	fields jsonb := '{}';
	field  record;
	n      integer := 0;
BEGIN
	IF headers IS NULL THEN
		RETURN NULL;
	ELSIF jsonb_typeof(headers) <> 'object' THEN
		RAISE EXCEPTION USING ERRCODE = 'ST001', MESSAGE = 'stet: headers must be an object: {"Location": "/payments/7"}, or with lists of values';
	END IF;
	FOR field IN SELECT CASE jsonb_typeof(h.value) WHEN 'string' THEN jsonb_build_array(h.value) WHEN 'array' THEN h.value END AS list,
		coalesce((SELECT string_agg(upper(left(u.part COLLATE "C", 1)) || lower(substr(u.part COLLATE "C", 2)), '-' ORDER BY u.nth)
			FROM unnest(string_to_array(h.key, '-')) WITH ORDINALITY AS u (part, nth)), '') AS name
		FROM jsonb_each(headers) h LOOP
		-- Those of the connection and of the moment are left out, as stethttp leaves them out.
		CONTINUE WHEN starts_with(field.name, 'Proxy-') OR field.name IN ('Connection', 'Content-Length', 'Date', 'Keep-Alive', 'Te', 'Trailer', 'Transfer-Encoding', 'Upgrade');
		IF field.name COLLATE "C" !~ '^[-!#$%&''*+.^_`|~0-9A-Za-z]+$' OR field.name = 'Content-Type' OR fields ? field.name
			OR field.list IS NULL OR EXISTS (SELECT FROM jsonb_array_elements(field.list) v WHERE jsonb_typeof(v) <> 'string' OR translate(v #>> '{}', chr(9), '') COLLATE "C" ~ '[[:cntrl:]]') THEN
			RAISE EXCEPTION USING ERRCODE = 'ST001', MESSAGE = format('stet: the header field %s cannot be kept', quote_literal(left(field.name, 100))),
				HINT = 'Its name must be one of HTTP, once, and not Content-Type, which has an argument of its own; it has a string or a list of strings, without control characters but for the tab.';
		END IF;
		n := n + 1 + jsonb_array_length(field.list);
		IF n > 4096 THEN
			RAISE EXCEPTION USING ERRCODE = 'ST001', MESSAGE = 'stet: there are more than 4096 header fields and values';
		END IF;
		fields := fields || jsonb_build_object(field.name, field.list);
	END LOOP;
	IF n = 0 THEN
		RETURN NULL;
	END IF;
	RETURN decode('03', 'hex') || convert_to(fields::text, 'UTF8');
END
$stet$;

-- Settles a claim of an operation's ID. head is NULL, or the header fields as stet_fields makes them. wait_lock is the lock of callers that
-- wait for the key. result and tombstone are seconds.
CREATE FUNCTION "stet"."stet_settle_raw"(id bytea, owner bytea, fence bigint, wait_lock bigint, status integer, content_type text, head bytea, body bytea,
	failed boolean, gone boolean, result double precision, tombstone double precision) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET enable_seqscan = off AS $stet$
#variable_conflict use_variable
DECLARE
	moment  timestamptz := clock_timestamp();
	kept    interval;
	forget  timestamptz;
	watched boolean;
BEGIN
	IF (wait_lock IS NOT NULL AND (status IS NULL OR status >= 200 AND status <= 999) AND failed IS NOT NULL AND gone IS NOT NULL
		AND result > 0 AND tombstone >= result AND tombstone <= 3155760000 AND (head IS NULL OR substr(head, 1, 1) = decode('03', 'hex'))
		AND coalesce(octet_length(body), 0)::bigint + coalesce(octet_length(head), 0) + coalesce(octet_length(content_type), 0) <= 67108864
		AND (content_type IS NULL OR octet_length(content_type) <= 255 AND content_type COLLATE "C" !~ '[[:cntrl:]]')) IS NOT TRUE THEN
		RAISE EXCEPTION USING ERRCODE = 'ST001', MESSAGE = 'stet: an argument of stet_settle_raw is not acceptable',
			HINT = 'status is NULL or 200 to 999; the result has at most 67108864 bytes, its content type 255 without control characters; head is NULL or begins with 03; tombstone is not shorter than result, and at most 100 years.';
	ELSIF gone THEN
		status := NULL;
		content_type := NULL;
		head := NULL;
		body := NULL;
	ELSIF body IS NULL THEN
		body := ''::bytea;
	END IF;
	kept := make_interval(secs => result);
	forget := moment + make_interval(secs => tombstone);
	-- In one transaction the result expires at the time that was written at begin, which leaves the row's indexes unchanged.
	UPDATE "stet"."records" r SET state = CASE WHEN failed THEN 3 ELSE 2 END, gone = gone, status = status, content_type = nullif(content_type, ''), head = head, body = body,
		settled_at = moment, forget_at = forget, expires_at = CASE WHEN r.unsettled AND r.claimed_at + kept > moment THEN r.claimed_at ELSE moment END + kept,
		due_at = CASE WHEN gone THEN forget ELSE CASE WHEN r.unsettled AND r.claimed_at + kept > moment THEN r.claimed_at ELSE moment END + kept END,
		unsettled = NULL, lease_until = NULL, run_due = NULL, relay_due = NULL, cancel_at = NULL, work = NULL, notes = NULL
	WHERE r.id = id AND r.owner = owner AND r.fence = fence AND r.state IN (1, 5)
	RETURNING r.watched INTO watched;
	IF NOT FOUND THEN
		PERFORM "stet"."stet_fenced"();
	ELSIF watched OR NOT pg_try_advisory_xact_lock(wait_lock) THEN -- a caller that waits for a transaction holds this lock
		PERFORM "stet"."stet_tell"(id);
	END IF;
END
$stet$;

CREATE FUNCTION "stet"."stet_settle"(claim text, status integer DEFAULT NULL, headers jsonb DEFAULT NULL, content_type text DEFAULT NULL, body bytea DEFAULT NULL,
	failed boolean DEFAULT NULL, gone boolean DEFAULT false, result interval DEFAULT '24 hours', tombstone interval DEFAULT NULL,
	max_result integer DEFAULT 1048576) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET enable_seqscan = off AS $stet$
#variable_conflict use_variable
DECLARE
	c       record;
	top     bytea    := "stet"."stet_fields"(headers);
	-- In seconds: what a day or a month is depends on the session's time zone.
	keep    double precision := extract(epoch FROM result);
	forget  double precision := coalesce(extract(epoch FROM tombstone), greatest(keep, 2592000));
	size    bigint   := coalesce(octet_length(body), 0)::bigint + coalesce(octet_length(top), 0) + coalesce(octet_length(content_type), 0);
	emitted text; -- the messages, in JSON
BEGIN
	SELECT * INTO c FROM "stet"."stet_claim"(claim);
	IF status NOT BETWEEN 200 AND 999 THEN
		RAISE EXCEPTION USING ERRCODE = 'ST001', MESSAGE = format('stet: the status is %s; it must be 200 to 999, or NULL for none', status);
	ELSIF octet_length(convert_to(content_type, 'UTF8')) > 255 OR content_type COLLATE "C" ~ '[[:cntrl:]]' THEN
		RAISE EXCEPTION USING ERRCODE = 'ST001', MESSAGE = 'stet: the content type has more than 255 bytes, or a control character';
	ELSIF gone IS NULL THEN
		RAISE EXCEPTION USING ERRCODE = 'ST001', MESSAGE = 'stet: gone must not be NULL';
	ELSIF keep IS NULL OR keep <= 0 OR forget < keep OR forget > 3155760000 THEN
		RAISE EXCEPTION USING ERRCODE = 'ST001', MESSAGE = format('stet: the result is kept for %s and its tombstone for %s; the first must be longer than nothing, the second not shorter, and at most 100 years',
			coalesce(result::text, 'NULL'), coalesce(tombstone::text, 'NULL'));
	ELSIF coalesce(max_result, 0) NOT BETWEEN 1 AND 67108864 THEN
		RAISE EXCEPTION USING ERRCODE = 'ST001', MESSAGE = 'stet: max_result must be 1 to 67108864 bytes';
	ELSIF NOT gone AND size > max_result THEN
		RAISE EXCEPTION USING ERRCODE = 'ST001', MESSAGE = format('stet: the result has %s bytes, and max_result is %s', size, max_result),
			HINT = 'Settle without it (gone => true), or keep more (max_result).';
	END IF;
	PERFORM "stet"."stet_settle_raw"(c.id, c.owner, c.fence, "stet"."stet_wait_lock"(c.id), status, content_type, top, body,
		coalesce(failed, status >= 500, false), gone, keep, forget);
	WITH taken AS (DELETE FROM "stet"."records_emitted" m WHERE m.owner = c.owner RETURNING m.n, m.message)
	SELECT string_agg(t.message, ',' ORDER BY t.n) INTO emitted FROM taken t;
	IF emitted IS NOT NULL THEN -- the record is not forgotten before they were sent
		UPDATE "stet"."records" r SET relay_due = clock_timestamp(), forget_at = NULL, due_at = CASE WHEN NOT r.gone THEN r.due_at END,
			work = decode('03', 'hex') || convert_to('{"Class":' || to_json(r.class)::text || ',"Tombstone":' || (forget * 1000000000)::numeric(30)::text || ',"Messages":[' || emitted || ']}', 'UTF8')
		WHERE r.id = c.id;
	END IF;
END
$stet$;

CREATE FUNCTION "stet"."stet_release"(claim text, keep interval DEFAULT '24 hours') RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET enable_seqscan = off AS $stet$
#variable_conflict use_variable
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
	DELETE FROM "stet"."records_emitted" m WHERE m.owner = c.owner;
	until := moment + make_interval(secs => span);
	UPDATE "stet"."records" r SET state = CASE WHEN r.work IS NULL THEN 4 ELSE 6 END, settled_at = moment, expires_at = NULL, unsettled = NULL,
		forget_at = CASE WHEN r.work IS NULL THEN until END, due_at = CASE WHEN r.work IS NULL THEN until END,
		lease_until = CASE WHEN r.work IS NOT NULL THEN moment END, run_due = CASE WHEN r.work IS NOT NULL THEN moment END
	WHERE r.id = c.id AND r.owner = c.owner AND r.fence = c.fence AND r.state IN (1, 5)
	RETURNING r.watched INTO watched;
	IF NOT FOUND THEN
		PERFORM "stet"."stet_fenced"();
	ELSIF watched OR NOT pg_try_advisory_xact_lock("stet"."stet_wait_lock"(c.id)) THEN
		PERFORM "stet"."stet_tell"(c.id);
	END IF;
END
$stet$;

-- What the sweep of package postgres does.
CREATE FUNCTION "stet"."stet_sweep"(most integer DEFAULT 1000, OUT marked_unknown bigint, OUT expired bigint, OUT removed bigint, OUT more boolean)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET plan_cache_mode = force_generic_plan AS $stet$
#variable_conflict use_column
DECLARE
	channel text        := 'stet_' || encode(substr("stet"."stet_own"('channel'::text, '{}'::bytea[]), 1, 8), 'hex');
	moment  timestamptz := clock_timestamp();
	seen    bigint;
BEGIN
	IF coalesce(most, 0) NOT BETWEEN 1 AND 10000 THEN
		RAISE EXCEPTION USING ERRCODE = 'ST001', MESSAGE = 'stet: a sweep looks at 1 to 10000 records';
	END IF;
	WITH due AS MATERIALIZED (
		SELECT r.ctid AS at, r.state, r.state = 1 AND r.lease_until <= moment AS dead, coalesce(r.forget_at <= moment, false) AS forgotten
		FROM "stet"."records" r WHERE r.due_at <= moment AND octet_length(r.id) = 32 AND octet_length(r.scope) = 32
			AND octet_length(r.fingerprint) = 33 AND octet_length(r.owner) = 16 AND r.fence > 0 AND r.state BETWEEN 1 AND 6
			AND (r.state IN (2, 3) OR r.state = 1 AND r.lease_until <= moment OR r.state <> 1 AND r.forget_at <= moment)
		ORDER BY r.due_at LIMIT most FOR UPDATE SKIP LOCKED
	), died AS (
		UPDATE "stet"."records" r SET state = CASE WHEN r.run_due IS NOT NULL THEN 6 WHEN r.outside = r.owner THEN 4 ELSE 5 END, settled_at = moment,
			forget_at = CASE WHEN r.run_due IS NULL AND r.outside = r.owner THEN moment + interval '24 hours' END,
			due_at = CASE WHEN r.run_due IS NULL AND r.outside = r.owner THEN moment + interval '24 hours' END,
			lease_until = CASE WHEN r.run_due IS NOT NULL THEN moment END
		FROM due WHERE r.ctid = due.at AND due.dead
		RETURNING r.state, (CASE WHEN r.watched THEN pg_notify(channel, encode(r.id, 'hex')) END) IS NULL AS told
	), bared AS (
		UPDATE "stet"."records" r SET gone = true, status = NULL, content_type = NULL, head = NULL, body = NULL, due_at = r.forget_at
		FROM due WHERE r.ctid = due.at AND due.state IN (2, 3) AND NOT due.forgotten RETURNING 1
	), purged AS (
		DELETE FROM "stet"."records" r USING due WHERE r.ctid = due.at AND due.state <> 1 AND due.forgotten RETURNING 1
	)
	SELECT (SELECT count(*) FROM due), (SELECT count(*) FROM died d WHERE d.state = 5), (SELECT count(*) FROM bared), (SELECT count(*) FROM purged)
	INTO seen, marked_unknown, expired, removed;
	more := seen >= most;
END
$stet$;

-- Functions that only compute are granted to PUBLIC. A service is granted the functions that
-- it calls, and nothing on the tables.
REVOKE ALL ON FUNCTION "stet"."stet_begin", "stet"."stet_begin_raw", "stet"."stet_settle", "stet"."stet_settle_raw", "stet"."stet_release", "stet"."stet_sweep", "stet"."stet_tell" FROM PUBLIC;

COMMENT ON FUNCTION "stet"."stet_begin" IS 'says what to do with an operation: run it in this transaction, or return the stored outcome; see docs/sql.md';
COMMENT ON FUNCTION "stet"."stet_begin_raw" IS 'stet_begin for clients that compute the digests and locks themselves';
COMMENT ON FUNCTION "stet"."stet_settle" IS 'writes the outcome of a claim; it is valid once this transaction is committed';
COMMENT ON FUNCTION "stet"."stet_settle_raw" IS 'stet_settle for clients that compute the stored bytes and the lock themselves; sends no emitted messages';
COMMENT ON FUNCTION "stet"."stet_release" IS 'releases a claim: nothing was executed';
COMMENT ON FUNCTION "stet"."stet_sweep" IS 'removes expired results and forgotten records, and marks expired runs unknown';
COMMENT ON FUNCTION "stet"."stet_fingerprint" IS 'the fingerprint of what a request asks for';
COMMENT ON FUNCTION "stet"."stet_id" IS 'the id of a record';

INSERT INTO "stet"."records_schema" (version) VALUES (2);
