-- A small schema in the form that lanebox writes.
-- +goose Up
CREATE TABLE SCHEMA.PREFIXlane_scope (
  scope integer NOT NULL,
  kind  text    NOT NULL,
  name  text    NOT NULL,
  CONSTRAINT PREFIXlane_scope_pkey PRIMARY KEY (scope)
);

CREATE TABLE SCHEMA.PREFIXlane_bucket (
  scope integer NOT NULL
) WITH (fillfactor = 20);

CREATE TABLE SCHEMA.PREFIXlane_hold (
  scope    integer NOT NULL,
  lane     bigint  NOT NULL,
  sequence bigint  NOT NULL,
  CONSTRAINT PREFIXlane_hold_pkey PRIMARY KEY (scope, lane, sequence)
);

CREATE TABLE SCHEMA.PREFIXlane_owner (
  scope integer NOT NULL
);

CREATE TABLE SCHEMA.PREFIXlane_version (
  scope integer NOT NULL
);

CREATE TABLE SCHEMA.PREFIXoutbox (
  sequence    bigint  GENERATED ALWAYS AS IDENTITY,
  destination integer NOT NULL,
  lane        bigint  NOT NULL,
  key         text    COLLATE "C",
  topic       text    NOT NULL,
  payload     text    NOT NULL
);

CREATE TABLE SCHEMA.PREFIXoutbox_dead (
  destination integer NOT NULL,
  lane        bigint  NOT NULL,
  topic       text    NOT NULL,
  payload     text    NOT NULL
);
