-- A small schema in the form that lanebox writes.
CREATE TABLE SCHEMA.PREFIXlane_scope (
  scope int           NOT NULL PRIMARY KEY,
  kind  nvarchar(20)  NOT NULL,
  name  nvarchar(255) NOT NULL
);

CREATE TABLE SCHEMA.PREFIXlane_bucket (
  scope int NOT NULL
);

CREATE TABLE SCHEMA.PREFIXlane_hold (
  scope    int    NOT NULL,
  lane     bigint NOT NULL,
  sequence bigint NOT NULL,
  PRIMARY KEY (scope, lane, sequence)
);

CREATE TABLE SCHEMA.PREFIXlane_owner (
  scope int NOT NULL
);

CREATE TABLE SCHEMA.PREFIXlane_version (
  scope int NOT NULL
);

CREATE TABLE SCHEMA.PREFIXoutbox_row (
  sequence    bigint IDENTITY(1, 1) NOT NULL PRIMARY KEY, -- drawn by the database; never reused
  destination int            NOT NULL,
  lane        bigint         NOT NULL,
  [key]       nvarchar(255)  NULL,
  topic       nvarchar(255)  NOT NULL,
  payload     nvarchar(max)  NOT NULL
);

CREATE TABLE SCHEMA.PREFIXoutbox_dead (
  destination int           NOT NULL,
  lane        bigint        NOT NULL,
  topic       nvarchar(255) NOT NULL,
  payload     nvarchar(max) NOT NULL
);
GO
CREATE VIEW SCHEMA.PREFIXoutbox AS SELECT sequence, destination, lane, [key], topic, payload FROM SCHEMA.PREFIXoutbox_row;
GO
