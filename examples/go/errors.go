package main

import (
	"fmt"
	"sort"
	"strings"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// describe returns the code of an error, its reason, and the field that is invalid.
func describe(err error) string {
	words := []string{codeName(status.Code(err))}
	for _, detail := range status.Convert(err).Details() {
		switch detail := detail.(type) {
		case *errdetails.ErrorInfo:
			words = append(words, "reason "+detail.GetReason())
			pairs := []string{}
			for key, value := range detail.GetMetadata() {
				pairs = append(pairs, key+"="+value)
			}
			sort.Strings(pairs)
			words = append(words, pairs...)
		case *errdetails.BadRequest:
			for _, violation := range detail.GetFieldViolations() {
				words = append(words, fmt.Sprintf("field %s: %s", violation.GetField(), violation.GetDescription()))
			}
		}
	}
	return strings.Join(words, ", ")
}

// codeName returns the name of a code as the documentation of gRPC has it.
func codeName(code codes.Code) string {
	switch code {
	case codes.NotFound:
		return "NOT_FOUND"
	case codes.InvalidArgument:
		return "INVALID_ARGUMENT"
	default:
		return code.String()
	}
}
