package webhook

import (
	"fmt"
	"net/http"
	"path"
	"strings"
)

// A Mux serves several sources, each under exactly its path. Unlike
// http.ServeMux it never redirects, since a redirected POST loses its body. To
// mount it below a prefix that is not part of the sources' paths, wrap it with
// http.StripPrefix.
type Mux struct {
	sources map[string]*Source
}

// NewMux returns a handler for the sources. It returns an error when a path
// cannot be served or occurs twice.
func NewMux(sources ...*Source) (*Mux, error) {
	m := &Mux{sources: map[string]*Source{}}
	for _, s := range sources {
		p := s.config.Path
		if !strings.HasPrefix(p, "/") || path.Clean(p) != p || strings.ContainsAny(p, "?#{} ") {
			return nil, fmt.Errorf("http source %s: path %q must begin with / and be in its shortest form", s.config.Name, p)
		}
		if other, ok := m.sources[p]; ok {
			return nil, fmt.Errorf("http sources %s and %s have the same path %s", other.config.Name, s.config.Name, p)
		}
		m.sources[p] = s
	}
	return m, nil
}

// ServeHTTP implements http.Handler.
func (m *Mux) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s, ok := m.sources[r.URL.Path]
	if !ok {
		newProblem(http.StatusNotFound, "path", "No source is mounted here: check the path.").write(w)
		return
	}
	s.ServeHTTP(w, r)
}
