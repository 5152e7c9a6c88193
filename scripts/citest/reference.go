//go:build unix

package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
)

// referenceOutput is where the code of the reference schema is generated, and
// sqlFolder where its SQL is kept for readers.
const (
	referenceOutput = "examples/reference/internal/events"
	sqlFolder       = "sql"
)

// referenceSQL returns the texts that the sql folder holds, by file name
// relative to the repository's root.
func referenceSQL(root string) (map[string][]byte, error) {
	files := map[string][]byte{}
	for _, dialect := range []string{"postgres", "sqlite", "sqlserver"} {
		for pattern, to := range map[string]string{
			"*.sql":            filepath.Join(sqlFolder, dialect),
			"migrations/*.sql": filepath.Join(sqlFolder, "migration", dialect),
		} {
			names, err := filepath.Glob(filepath.Join(root, referenceOutput, dialect, pattern))
			if err != nil || len(names) == 0 {
				return nil, errors.Join(err, fmt.Errorf("%s/%s: no %s", referenceOutput, dialect, pattern))
			}
			for _, name := range names {
				text, err := os.ReadFile(name)
				if err != nil {
					return nil, err
				}
				files[filepath.Join(to, filepath.Base(name))] = text
			}
		}
	}
	return files, nil
}

// writeReferenceSQL brings the sql folder in line with the reference schema.
func writeReferenceSQL(root string) error {
	files, err := referenceSQL(root)
	if err != nil {
		return err
	}
	orphans, err := referenceOrphans(root, files)
	if err != nil {
		return err
	}
	for _, name := range orphans {
		if err := os.Remove(filepath.Join(root, name)); err != nil {
			return err
		}
	}
	for name, text := range files {
		full := filepath.Join(root, name)
		if now, err := os.ReadFile(full); err == nil && bytes.Equal(now, text) {
			continue
		}
		if err := os.MkdirAll(filepath.Dir(full), 0o777); err != nil {
			return err
		}
		if err := os.WriteFile(full, text, 0o666); err != nil {
			return err
		}
		fmt.Println("wrote", name)
	}
	return nil
}

// checkReferenceSQL reports files of the sql folder that are not what the
// reference schema gives.
func checkReferenceSQL(root string) error {
	files, err := referenceSQL(root)
	if err != nil {
		return err
	}
	var errs []error
	for name, text := range files {
		now, err := os.ReadFile(filepath.Join(root, name))
		if err != nil {
			errs = append(errs, err)
		} else if !bytes.Equal(now, text) {
			errs = append(errs, fmt.Errorf("%s is stale; run make generate", name))
		}
	}
	orphans, err := referenceOrphans(root, files)
	for _, name := range orphans {
		errs = append(errs, fmt.Errorf("%s is no longer generated; run make generate", name))
	}
	return errors.Join(append(errs, err)...)
}

// referenceOrphans returns the SQL files of the sql folder that are not among
// files.
func referenceOrphans(root string, files map[string][]byte) ([]string, error) {
	var orphans []string
	err := filepath.WalkDir(filepath.Join(root, sqlFolder), func(name string, d os.DirEntry, err error) error {
		if errors.Is(err, os.ErrNotExist) {
			return nil
		}
		if err != nil || d.IsDir() || filepath.Ext(name) != ".sql" {
			return err
		}
		rel, err := filepath.Rel(root, name)
		if _, ok := files[rel]; !ok {
			orphans = append(orphans, rel)
		}
		return err
	})
	return orphans, err
}
