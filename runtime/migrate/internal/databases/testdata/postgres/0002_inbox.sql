-- +goose Up
CREATE TABLE SCHEMA.PREFIXinbox (
  sequence   bigint  GENERATED ALWAYS AS IDENTITY,
  scope      integer NOT NULL,
  source     integer NOT NULL,
  lane       bigint  NOT NULL,
  event_type text    NOT NULL
);

CREATE TABLE SCHEMA.PREFIXinbox_dead (
  scope      integer NOT NULL,
  source     integer NOT NULL,
  lane       bigint  NOT NULL,
  event_type text    NOT NULL
);

CREATE TABLE SCHEMA.PREFIXinbox_receipt (
  source          integer NOT NULL,
  idempotency_key text    NOT NULL,
  CONSTRAINT PREFIXinbox_receipt_pkey PRIMARY KEY (source, idempotency_key)
);
