package netdev

import (
	"podrail/internal/hookapi"
	"podrail/internal/link"
)

func (s *session) planRDMA(e *hookapi.Entry, l link.Link) error             { return nil }
func (s *session) moveRDMA(e *hookapi.Entry, target *namespace) error       { return nil }
func (s *session) fetchRDMA(e *hookapi.Entry, home, owner *namespace) error { return nil }
