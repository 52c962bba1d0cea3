package main

import (
	"fmt"
	"sort"
	"strings"

	"google.golang.org/genproto/googleapis/rpc/code"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/status"
)

// describe returns the code of an error, its reason, and the field that is invalid.
func describe(err error) string {
	words := []string{code.Code(status.Code(err)).String()} // codes.Code spells NOT_FOUND as NotFound.
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

// describeAll returns a line for each error that err joins.
func describeAll(err error) string {
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		lines := []string{}
		for _, one := range joined.Unwrap() {
			lines = append(lines, describeAll(one))
		}
		return strings.Join(lines, "\n")
	}
	if failure, ok := status.FromError(err); ok {
		return fmt.Sprintf("error %s: %s", describe(err), failure.Message())
	}
	return fmt.Sprintf("error %v", err)
}
