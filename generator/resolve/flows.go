package resolve

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/lanebox/lanebox/generator/diag"
	"github.com/lanebox/lanebox/generator/model"
	"github.com/lanebox/lanebox/generator/naming"
	"github.com/lanebox/lanebox/generator/schema"
)

// The defaults of delivery; DESIGN and the runtime's own defaults agree.
const (
	defaultConcurrency  = 16
	defaultMaxUnsettled = 256
	defaultTimeout      = 10 * time.Second
	defaultLease        = 15 * time.Second
	defaultMaxAttempts  = 20
	defaultRetryBase    = time.Second
	defaultRetryCap     = 5 * time.Minute
	defaultReceipts     = 7 * 24 * time.Hour
	defaultMaxBytes     = 1 << 20

	maxConcurrency = 100_000
	maxAttempts    = 1_000_000
	maxBody        = 1 << 30
)

// transports are the types of sources and destinations.
var transports = append([]string{"http", "handler"}, model.Brokers...)

// transport checks the type of a source or destination, and that it has the keys
// that only brokers have.
func (r *resolver) transport(kind string, t schema.Text, b *schema.Broker, what string) {
	switch {
	case !t.Set:
	case !slices.Contains(transports, t.V):
		r.report(t.Mark, "unknown-transport", diag.OneOf(t.V, transports), "%s has the unknown type %q", what, t.V)
	default:
		r.brokerFlow(kind, t, b, what)
	}
}

// number gives a scope its stable number.
func (r *resolver) number(kind string, name, was schema.Text, exists func(string) bool) int32 {
	what := fmt.Sprintf("%s %q", kind, name.V)
	stable := name
	if was.Set {
		stable = was
		switch {
		case was.V == name.V:
			r.report(was.Mark, "was", "remove it", "%s has always had this name", what)
			return 0
		case exists(was.V):
			r.report(was.Mark, "was", "", "%s was %q, but %s %q still exists", what, was.V, kind, was.V)
			return 0
		}
	}
	n := naming.Number(kind, stable.V)
	if first, taken := r.numbers[n]; taken {
		r.report(name.Mark, "number-collision", "rename one of them", "%s and %s (line %d) have the same number %d in the database", what, first.What, first.Pos.Line, n)
		return 0
	}
	r.numbers[n] = naming.Use{What: what, Pos: name.Pos}
	return n
}

// flowName checks a name of a source or destination and chooses its Go name.
func (r *resolver) flowName(kind string, name, override schema.Text, folded map[string]schema.Text) string {
	what := fmt.Sprintf("%s %q", kind, name.V)
	if problem := nameProblem(name.V); problem != "" {
		r.report(name.Mark, "name", "", "%s %s", what, problem)
		return ""
	}
	lower := strings.ToLower(name.V)
	if first, taken := folded[lower]; taken {
		r.report(name.Mark, "name-collision", "rename one of them", "%s and %q (line %d) differ only in case", what, first.V, first.Pos.Line)
		return ""
	}
	folded[lower] = name
	return r.goName(what, name, override, naming.Exported)
}

// resolveDestinations resolves all destinations, in file order.
func (r *resolver) resolveDestinations() {
	exists := func(name string) bool {
		return slices.ContainsFunc(r.file.Destinations, func(d schema.Destination) bool { return d.Name.V == name })
	}
	folded := map[string]schema.Text{}
	for i := range r.file.Destinations {
		d := &r.file.Destinations[i]
		what := fmt.Sprintf("destination %q", d.Name.V)
		out := &model.Destination{Pos: d.Name.Pos, Name: d.Name.V, Doc: cleanDoc(d.Doc.V), Type: d.Type.V, Was: d.Was.V}
		r.transport("destination", d.Type, &d.Broker, what)
		out.Broker = r.brokerDestination(d, what)
		if out.GoName = r.flowName("destination", d.Name, d.GoName, folded); out.GoName != "" &&
			r.claim(r.config, out.GoName, what, d.Name.Mark) {
			r.claim(r.pkg, out.GoName+"Destination", what, d.Name.Mark)
			r.claim(r.pkg, out.GoName+"DestinationPolicy", "the policy of "+what, d.Name.Mark)
			if out.Broker != nil {
				r.claim(r.pkg, out.GoName+"Topology", "the topology of "+what, d.Name.Mark)
			}
		}
		out.Number = r.number("destination", d.Name, d.Was, exists)
		out.Delivery = r.delivery(&d.Delivery, what)
		r.destinations[d.Name.V] = out
		r.destinationList = append(r.destinationList, out)
	}
}

// delivery resolves a policy.
func (r *resolver) delivery(d *schema.Delivery, what string) model.Delivery {
	out := model.Delivery{
		Concurrency:  int(r.count(d.Concurrency, defaultConcurrency, maxConcurrency, what+": concurrency")),
		MaxUnsettled: int(r.count(d.MaxUnsettled, defaultMaxUnsettled, maxConcurrency, what+": max_unsettled")),
		MaxAttempts:  int(r.count(d.Retry.MaxAttempts, defaultMaxAttempts, maxAttempts, what+": retry: max_attempts")),
		RetryBase:    r.span(d.Retry.Base, defaultRetryBase, time.Millisecond, what+": retry: base"),
		RetryCap:     r.span(d.Retry.Cap, defaultRetryCap, time.Millisecond, what+": retry: cap"),
	}
	r.word(d.Settle, what+": settle", "batch", "each")
	r.word(d.OnDead, what+": on_dead", "release", "park")
	out.SettleEach, out.ParkDead = d.Settle.V == "each", d.OnDead.V == "park"
	r.leaseAndTimeout(d, &out, what)
	r.retry(d, &out, what)
	if out.Concurrency > out.MaxUnsettled {
		if !d.MaxUnsettled.Set {
			out.MaxUnsettled = out.Concurrency
		} else {
			r.warn(d.MaxUnsettled.Mark, "unreachable-concurrency", "raise max_unsettled, or lower concurrency", "%s: concurrency %d is never reached, since at most %d messages may be unsettled", what, out.Concurrency, out.MaxUnsettled)
		}
	}
	return out
}

// leaseAndTimeout fills in what is not written so that the lease outlasts one
// delivery, and checks what is.
func (r *resolver) leaseAndTimeout(d *schema.Delivery, out *model.Delivery, what string) {
	timeout, lease := defaultTimeout, defaultLease
	switch {
	case d.Timeout.Set && !d.Lease.Set:
		lease = max(lease, min(d.Timeout.V, 365*24*time.Hour)*3/2)
	case d.Lease.Set && !d.Timeout.Set:
		timeout = max(time.Millisecond, min(timeout, d.Lease.V/3*2))
	}
	out.Timeout = r.span(d.Timeout, timeout, time.Millisecond, what+": timeout")
	out.Lease = r.span(d.Lease, lease, time.Second, what+": lease")
	if d.Timeout.Set && d.Lease.Set && out.Lease <= out.Timeout {
		r.report(d.Lease.Mark, "lease", fmt.Sprintf("write a lease longer than %s, or a shorter timeout", out.Timeout), "%s: the lease of %s ends before a delivery may, after %s", what, out.Lease, out.Timeout)
	}
}

// retry checks that the backoff can grow.
func (r *resolver) retry(d *schema.Delivery, out *model.Delivery, what string) {
	if out.RetryBase <= out.RetryCap {
		return
	}
	switch {
	case d.Retry.Cap.Set:
		r.report(d.Retry.Cap.Mark, "retry", "", "%s: retry: cap %s is shorter than base %s", what, out.RetryCap, out.RetryBase)
	default:
		out.RetryCap = out.RetryBase
	}
}

// count returns a whole number within limits, or its default.
func (r *resolver) count(v schema.Value[int64], byDefault, limit int64, what string) int64 {
	switch {
	case !v.Set:
		return byDefault
	case v.V < 1 || v.V > limit:
		r.report(v.Mark, "out-of-range", "", "%s is %d; it must be between 1 and %d", what, v.V, limit)
		return byDefault
	}
	return v.V
}

// span returns a duration of at least least, or its default.
func (r *resolver) span(v schema.Value[time.Duration], byDefault, least time.Duration, what string) time.Duration {
	switch {
	case !v.Set:
		return byDefault
	case v.V < least:
		r.report(v.Mark, "out-of-range", "", "%s is %s; it must be at least %s", what, v.V, least)
		return byDefault
	}
	return v.V
}

// resolveRoutes resolves all routes, in file order.
func (r *resolver) resolveRoutes() {
	for i := range r.file.Routes {
		route := &r.file.Routes[i]
		out := model.Route{Pos: route.Pos}
		for _, name := range route.To {
			d, ok := r.destinations[name.V]
			switch {
			case !ok:
				r.unknownName("destination", name, r.destinationNames())
			case slices.Contains(out.To, d):
				r.report(name.Mark, "duplicate", "", "duplicate destination %q in a route", name.V)
			default:
				out.To = append(out.To, d)
			}
		}
		for _, pattern := range route.Events {
			if slices.Contains(out.Events, pattern.V) {
				r.report(pattern.Mark, "duplicate", "", "duplicate topic %q in a route", pattern.V)
				continue
			}
			out.Events = append(out.Events, pattern.V)
			r.route(pattern, out.To)
		}
		r.model.Routes = append(r.model.Routes, out)
	}
}

// route sends the events that match a pattern to destinations.
func (r *resolver) route(pattern schema.Text, to []*model.Destination) {
	matched, ok := r.match(pattern)
	if !ok {
		return
	}
	for _, e := range matched {
		e.routed = true
		for _, d := range to {
			if !slices.Contains(e.event.Destinations, d) {
				e.event.Destinations = append(e.event.Destinations, d)
			}
		}
	}
	if len(matched) > 0 || len(r.events) == 0 {
		return
	}
	hint := diag.DidYouMean(pattern.V, r.topics())
	switch {
	case !r.hasPush():
		r.didYouMean(pattern.V, r.topics())
		r.report(pattern.Mark, "route-matches-nothing", hint, "route %q matches no event", pattern.V)
	case hint != "" && !strings.Contains(pattern.V, "*"):
		r.warn(pattern.Mark, "route-matches-nothing", hint, "route %q matches no event of the schema, only what push sources may bring", pattern.V)
	}
}

// match returns the events that match a pattern. It returns false if the pattern
// is no pattern.
func (r *resolver) match(pattern schema.Text) ([]*eventEntry, bool) {
	if problem := topicProblem(pattern.V, "*"); problem != "" {
		hint := ""
		if strings.ContainsAny(pattern.V, "?[]{}%") {
			hint = "* stands for any text; nothing else is special"
		}
		r.report(pattern.Mark, "topic", hint, "topic %q %s", pattern.V, problem)
		return nil, false
	}
	var matched []*eventEntry
	for _, e := range r.events {
		if matches(pattern.V, e.event.Topic) {
			matched = append(matched, e)
		}
	}
	return matched, true
}

// matches reports whether topic matches pattern, in which * stands for any text.
func matches(pattern, topic string) bool {
	parts := strings.Split(pattern, "*")
	if len(parts) == 1 {
		return pattern == topic
	}
	rest, ok := strings.CutPrefix(topic, parts[0])
	if !ok {
		return false
	}
	for _, middle := range parts[1 : len(parts)-1] {
		_, after, found := strings.Cut(rest, middle)
		if !found {
			return false
		}
		rest = after
	}
	return strings.HasSuffix(rest, parts[len(parts)-1])
}

// hasPush reports whether there is a push source, whose types are not known here.
func (r *resolver) hasPush() bool {
	return slices.ContainsFunc(r.file.Sources, func(s schema.Source) bool { return s.Mode.V != "pull" })
}

// topics are the names of all declared events.
func (r *resolver) topics() []string {
	var names []string
	for _, e := range r.events {
		names = append(names, e.event.Topic)
	}
	return names
}

func (r *resolver) destinationNames() []string {
	var names []string
	for _, d := range r.file.Destinations {
		names = append(names, d.Name.V)
	}
	return names
}

// didYouMean returns the hint for word, and remembers what it was meant to be.
func (r *resolver) didYouMean(word string, candidates []string) string {
	if s := diag.Suggest(word, candidates); s != "" {
		r.meant[s] = true
	}
	return diag.DidYouMean(word, candidates)
}

// unknownName reports a reference to something that is not declared.
func (r *resolver) unknownName(kind string, name schema.Text, candidates []string) {
	hint := r.didYouMean(name.V, candidates)
	if hint == "" {
		hint = fmt.Sprintf("declare it under %ss", kind)
	}
	r.report(name.Mark, "unknown-"+kind, hint, "unknown %s %q", kind, name.V)
}

// resolveCatalogs resolves all catalogs, in file order.
func (r *resolver) resolveCatalogs() {
	for i := range r.file.Catalogs {
		c := &r.file.Catalogs[i]
		what := fmt.Sprintf("catalog %q", c.Name.V)
		out := model.Catalog{Pos: c.Name.Pos, Name: c.Name.V}
		out.GoName = r.catalogName(c.Name, what)
		out.Events = r.selected(c.Events, what)
		if len(out.Events) > 0 && !slices.ContainsFunc(out.Events, r.isRouted) {
			r.report(c.Name.Mark, "catalog", "route one of them", "%s has no event that is routed and could be published", what)
		}
		r.catalogList = append(r.catalogList, out)
	}
}

// catalogName chooses the Go name of a catalog, which is also a method of the
// publisher.
func (r *resolver) catalogName(name schema.Text, what string) string {
	if problem := nameProblem(name.V); problem != "" {
		r.report(name.Mark, "name", "", "%s %s", what, problem)
		return ""
	}
	id, err := naming.Exported(name.V)
	if err != nil {
		r.report(name.Mark, "go-name", "rename it", "%s has no Go name: %v", what, err)
		return ""
	}
	use := naming.Use{What: what, Pos: name.Pos}
	for _, err := range []error{
		r.publisher.Claim(id, use),
		r.pkg.Claim(id+"Publisher", naming.Use{What: "the publisher of " + what, Pos: name.Pos}),
		r.pkg.Claim(id+"Event", naming.Use{What: "the event interface of " + what, Pos: name.Pos}),
	} {
		if err != nil {
			r.report(name.Mark, "name-collision", "rename the catalog", "%v", err)
		}
	}
	return id
}

// isRouted reports whether a route names the event.
func (r *resolver) isRouted(event *model.Event) bool {
	return slices.ContainsFunc(r.events, func(e *eventEntry) bool { return e.event == event && e.routed })
}

// selected returns the events that match patterns, sorted, each once.
func (r *resolver) selected(patterns []schema.Text, what string) []*model.Event {
	var list []*model.Event
	for _, p := range patterns {
		matched, ok := r.match(p)
		if ok && len(matched) == 0 {
			hint := r.didYouMean(p.V, r.topics())
			if hint == "" && strings.Contains(p.V, "*") {
				hint = "* stands for any text, dots included"
			} else if hint == "" {
				hint = "declare it under events"
			}
			r.report(p.Mark, "unknown-event", hint, "%s: no event matches %q", what, p.V)
		}
		for _, e := range matched {
			if !slices.Contains(list, e.event) {
				list = append(list, e.event)
			}
		}
	}
	slices.SortFunc(list, func(a, b *model.Event) int { return strings.Compare(a.Topic, b.Topic) })
	return list
}

// checkFlows checks what is only known when everything is connected.
func (r *resolver) checkFlows() {
	for _, e := range r.events {
		if !e.routed && !e.pulled && !r.meant[e.event.Topic] && !r.file.Faulty {
			r.report(e.name.Mark, "event-goes-nowhere", "add a route, or list it in the events of a pull source", "event %q goes nowhere", e.event.Topic)
		}
	}
	for _, s := range r.sourceList {
		if !s.source.Pull && len(r.file.Routes) == 0 && !r.file.Faulty {
			r.report(s.name.Mark, "source-goes-nowhere", "add a route, or mode: pull", "messages of push source %q go nowhere: there is no route", s.source.Name)
		}
	}
	for i, d := range r.destinationList {
		if !slices.ContainsFunc(r.model.Routes, func(route model.Route) bool { return slices.Contains(route.To, d) }) && !r.meant[d.Name] && !r.file.Faulty {
			r.warn(r.file.Destinations[i].Name.Mark, "destination-unused", "route something to it, or remove it", "no route leads to destination %q", d.Name)
		}
		r.checkDense(d, &r.file.Destinations[i])
	}
	r.checkBrokers()
}

// checkDense warns where a dead message leaves a gap that a versioned consumer
// waits for.
func (r *resolver) checkDense(d *model.Destination, at *schema.Destination) {
	if onDead := at.Delivery.OnDead; onDead.Set && onDead.V != "release" {
		return
	}
	var keys []string
	for _, e := range r.events {
		if k := e.event.Key; k != nil && k.Version.Dense && slices.Contains(e.event.Destinations, d) && !slices.Contains(keys, k.Name) {
			keys = append(keys, k.Name)
		}
	}
	m := at.Name.Mark
	if at.Delivery.OnDead.Set {
		m = at.Delivery.OnDead.Mark
	}
	slices.Sort(keys)
	for _, k := range keys {
		r.warn(m, "dense-release", "use on_dead: park, or let consumers expect gaps", "key %q has dense versions, but destination %q passes a dead message, which leaves a gap", k, d.Name)
	}
}
