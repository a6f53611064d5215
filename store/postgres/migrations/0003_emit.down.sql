-- Messages of open transactions, and stet_emit. Messages that are in a record stay.
DROP TABLE "stet"."records_emitted";
DROP FUNCTION "stet"."stet_emit", "stet"."stet_unsent";
DELETE FROM "stet"."records_schema" WHERE version = 3;
