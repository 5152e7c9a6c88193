-- A small schema in the form that lanebox writes.
-- +goose Up
CREATE TABLE PREFIXlane_scope (
  scope INTEGER PRIMARY KEY,
  kind  TEXT    NOT NULL,
  name  TEXT    NOT NULL
);

CREATE TABLE PREFIXlane_bucket (
  scope INTEGER NOT NULL
);

CREATE TABLE PREFIXlane_hold (
  scope    INTEGER NOT NULL,
  lane     INTEGER NOT NULL,
  sequence INTEGER NOT NULL,
  PRIMARY KEY (scope, lane, sequence)
) WITHOUT ROWID;

CREATE TABLE PREFIXlane_owner (
  scope INTEGER NOT NULL
);

CREATE TABLE PREFIXlane_version (
  scope INTEGER NOT NULL
);

CREATE TABLE PREFIXoutbox (
  sequence    INTEGER PRIMARY KEY AUTOINCREMENT, -- drawn by the database; never reused
  destination INTEGER NOT NULL,
  lane        INTEGER NOT NULL,
  "key"       TEXT,
  topic       TEXT    NOT NULL,
  payload     TEXT    NOT NULL
);

CREATE TABLE PREFIXoutbox_dead (
  destination INTEGER NOT NULL,
  lane        INTEGER NOT NULL,
  topic       TEXT    NOT NULL,
  payload     TEXT    NOT NULL
);
