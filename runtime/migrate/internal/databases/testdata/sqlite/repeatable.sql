DROP TRIGGER IF EXISTS PREFIXoutbox_order;
CREATE TRIGGER PREFIXoutbox_order AFTER INSERT ON PREFIXoutbox
BEGIN
  UPDATE PREFIXoutbox SET topic = NEW.topic || '; seen' WHERE sequence = NEW.sequence;
  SELECT RAISE(ABORT, 'lanebox: ''no''; never') WHERE NEW.topic = '';
END;

