package proxy

import _ "embed" // the schema

// Schema is the JSON schema of a configuration, for editors: what Parse takes, with the
// words of Reference. Check knows more.
//
//go:embed schema.json
var Schema string
