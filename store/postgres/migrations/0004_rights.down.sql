-- The rights that default privileges had given are not given again.
DELETE FROM "stet"."records_schema" WHERE version = 4;
