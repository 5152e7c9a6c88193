-- +goose StatementBegin
CREATE OR REPLACE FUNCTION SCHEMA.PREFIXoutbox_order() RETURNS trigger LANGUAGE plpgsql AS $order$
DECLARE
  mark text := $mark$; seen$mark$;
BEGIN
  NEW.topic := NEW.topic || mark;
  RETURN NEW;
END $order$;
-- +goose StatementEnd

DO $triggers$ BEGIN
  IF NOT EXISTS (SELECT FROM pg_trigger AS g WHERE g.tgrelid = 'SCHEMA.PREFIXoutbox'::regclass AND g.tgname = 'PREFIXoutbox_order') THEN
    CREATE TRIGGER PREFIXoutbox_order BEFORE INSERT ON SCHEMA.PREFIXoutbox
      FOR EACH ROW EXECUTE FUNCTION SCHEMA.PREFIXoutbox_order();
  END IF;
END $triggers$;

