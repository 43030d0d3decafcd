package main

import (
	"fmt"
	"io"
	"log/slog"

	"github.com/urfave/cli/v2"
)

// textHandler is slog's, without the time: a person reads it now.
type textHandler struct{ slog.Handler }

func newLogger(w io.Writer, format string, level slog.Level) *slog.Logger {
	if format == "json" {
		return slog.New(slog.NewJSONHandler(w, &slog.HandlerOptions{Level: level}))
	}
	return slog.New(&textHandler{slog.NewTextHandler(w, &slog.HandlerOptions{
		Level: level,
		ReplaceAttr: func(groups []string, a slog.Attr) slog.Attr {
			if a.Key == slog.TimeKey && len(groups) == 0 {
				return slog.Attr{}
			}
			return a
		},
	})})
}

// logFlags may stand before a command and after it.
func (p *program) logFlags() []cli.Flag {
	return []cli.Flag{
		&cli.StringFlag{Name: "log-level", Value: "info", Usage: "least `LEVEL` of messages on stderr: debug, info, warn, error"},
		&cli.StringFlag{Name: "log-format", Value: "text", Usage: "`FORMAT` of messages on stderr: text, json"},
	}
}

// setLog takes the flags of the app or of a command; a command's count more.
func (p *program) setLog(c *cli.Context) error {
	var level slog.Level
	if err := level.UnmarshalText([]byte(logFlag(c, "log-level"))); err != nil {
		return usagef("--log-level %q: must be debug, info, warn or error", logFlag(c, "log-level"))
	}
	format := logFlag(c, "log-format")
	if format != "text" && format != "json" {
		return usagef("--log-format %q: must be text or json", format)
	}
	p.log = newLogger(p.stderr, format, level)
	return nil
}

// logFlag is the value set nearest to the command, else the default.
func logFlag(c *cli.Context, name string) string {
	for _, context := range c.Lineage() {
		for _, set := range context.LocalFlagNames() {
			if set == name {
				return context.String(name)
			}
		}
	}
	return c.String(name)
}

// listValue is a flag that may be given more than once. Unlike urfave/cli's
// StringSlice it does not split at commas, which mounts and variables have.
type listValue []string

func (l *listValue) Set(s string) error { *l = append(*l, s); return nil }
func (l *listValue) String() string {
	if l == nil || len(*l) == 0 {
		return ""
	}
	return fmt.Sprint([]string(*l))
}

func listFlag(c *cli.Context, name string) []string {
	l, _ := c.Generic(name).(*listValue)
	if l == nil {
		return nil
	}
	return *l
}
