-- Messages that a service emits in its transaction: stet_emit stores them until stet_settle,
-- in the same transaction, puts them into the record, from where they are sent.
CREATE TABLE "stet"."records_emitted" (
	owner   bytea   NOT NULL,
	n       integer NOT NULL,
	size    integer NOT NULL,
	message text    NOT NULL,
	PRIMARY KEY (owner, n)
);
COMMENT ON TABLE "stet"."records_emitted" IS 'messages of transactions that have not settled yet; outside of them it is empty';

CREATE FUNCTION "stet"."stet_emit"(claim text, destination text, body bytea DEFAULT NULL, key text DEFAULT NULL, header jsonb DEFAULT NULL) RETURNS text
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET enable_seqscan = off AS $stet$
#variable_conflict use_column
DECLARE
	c      record;
	field  record;
	fields jsonb  := coalesce(header, '{}'::jsonb);
	bytes  bigint := octet_length(convert_to(destination, 'UTF8'))::bigint + coalesce(octet_length(convert_to(key, 'UTF8')), 0) + coalesce(octet_length(body), 0);
	count  bigint;
	total  bigint;
	nth    bytea;
	made   text;
	digest bytea;
BEGIN
	SELECT * INTO c FROM "stet"."stet_claim"(claim);
	IF coalesce(octet_length(convert_to(destination, 'UTF8')), 0) NOT BETWEEN 1 AND 1024 OR destination COLLATE "C" ~ '[[:cntrl:]]' THEN
		RAISE EXCEPTION USING ERRCODE = 'ST001', MESSAGE = format('stet: the destination has %s bytes; it must have 1 to 1024, and no control characters', coalesce(octet_length(convert_to(destination, 'UTF8')), 0));
	ELSIF jsonb_typeof(fields) <> 'object' THEN
		RAISE EXCEPTION USING ERRCODE = 'ST001', MESSAGE = 'stet: the header must be an object of strings: {"content-type": "application/json"}';
	END IF;
	FOR field IN SELECT h.key AS name, h.value AS value FROM jsonb_each(fields) h LOOP
		IF octet_length(convert_to(field.name, 'UTF8')) NOT BETWEEN 1 AND 255 OR field.name COLLATE "C" ~ '[[:cntrl:]]' OR jsonb_typeof(field.value) <> 'string' THEN
			RAISE EXCEPTION USING ERRCODE = 'ST001', MESSAGE = format('stet: the field %s of the header cannot be sent', quote_literal(left(field.name, 100))),
				HINT = 'Its name must have 1 to 255 bytes, without control characters, and its value be a string.';
		END IF;
		bytes := bytes + octet_length(convert_to(field.name, 'UTF8')) + octet_length(convert_to(field.value #>> '{}', 'UTF8'));
	END LOOP;
	PERFORM FROM "stet"."records" r WHERE r.id = c.id AND r.owner = c.owner AND r.fence = c.fence AND r.state IN (1, 5);
	IF NOT FOUND THEN
		PERFORM "stet"."stet_fenced"();
	END IF;
	SELECT count(*), coalesce(sum(m.size), 0) INTO count, total FROM "stet"."records_emitted" m WHERE m.owner = c.owner;
	IF count >= 1000 OR total + bytes > 1048576 THEN
		RAISE EXCEPTION USING ERRCODE = 'ST001', MESSAGE = 'stet: an operation can emit 1000 messages and 1048576 bytes';
	END IF;
	-- The ID is that which stet.DeriveKey makes.
	nth := convert_to(count::text, 'UTF8');
	digest := substr(sha256(convert_to('stet key 1', 'UTF8') || int8send(12::bigint) || convert_to('stet/message', 'UTF8')
		|| int8send(64::bigint) || convert_to(encode(c.id, 'hex'), 'UTF8') || int8send(octet_length(nth)::bigint) || nth), 1, 16);
	digest := set_byte(digest, 6, get_byte(digest, 6) & 15 | 128);
	made := encode(set_byte(digest, 8, get_byte(digest, 8) & 63 | 128), 'hex')::uuid::text;
	INSERT INTO "stet"."records_emitted" (owner, n, size, message) VALUES (c.owner, count::integer, bytes::integer,
		json_build_object('ID', made, 'To', destination, 'Key', coalesce(key, ''), 'Header', fields, 'Body', replace(encode(coalesce(body, ''::bytea), 'base64'), chr(10), ''))::text);
	RETURN made;
END
$stet$;

-- A transaction that emits settles or releases, or commits nothing: without an outcome no
-- message is ever sent.
CREATE FUNCTION "stet"."stet_unsent"() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET enable_seqscan = off AS $stet$
BEGIN
	IF EXISTS (SELECT FROM "stet"."records_emitted" m WHERE m.owner = NEW.owner AND m.n = NEW.n) THEN
		RAISE EXCEPTION USING ERRCODE = 'ST003', MESSAGE = 'stet: this transaction has emitted messages of an operation that it has neither settled nor released: nothing was committed',
			HINT = 'Call stet_settle in the transaction that has called stet_emit, before its COMMIT.';
	END IF;
	RETURN NULL;
END
$stet$;

CREATE CONSTRAINT TRIGGER "stet_unsent" AFTER INSERT ON "stet"."records_emitted" DEFERRABLE INITIALLY DEFERRED
	FOR EACH ROW EXECUTE FUNCTION "stet"."stet_unsent"();

REVOKE ALL ON FUNCTION "stet"."stet_emit", "stet"."stet_unsent" FROM PUBLIC;

COMMENT ON FUNCTION "stet"."stet_emit" IS 'adds a message to the outcome of a claim, to be sent once this transaction is committed; returns its ID';

INSERT INTO "stet"."records_schema" (version) VALUES (3);
