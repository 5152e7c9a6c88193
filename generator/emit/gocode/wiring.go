package gocode

import "github.com/dave/jennifer/jen"

func (g *generator) postgres(f *jen.File) {}
func (g *generator) sqlite(f *jen.File)   {}
