-- Once, after "stet migrate up".
CREATE TABLE orders (id bigserial PRIMARY KEY, book text NOT NULL, copies integer NOT NULL, charge integer NOT NULL);
CREATE TABLE shipments (message text NOT NULL, "order" bigint NOT NULL);
