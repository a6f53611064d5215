DROP TABLE "stet"."records_history";
DELETE FROM "stet"."records_schema" WHERE version = 5;
