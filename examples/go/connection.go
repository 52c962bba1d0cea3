package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"os"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"
)

// Deadlines of calls, for a busy laptop; docs/clients.md has those of a server.
const (
	readTime  = 30 * time.Second
	writeTime = 60 * time.Second
	turnTime  = 10 * time.Minute
)

const serviceConfig = "../../proto/service_config.json"

// connect returns a connection for the clients of all services: the orchestrator forwards the calls of the others.
// README.md lists the environment variables.
func connect() (*grpc.ClientConn, error) {
	retries, err := os.ReadFile(serviceConfig)
	if err != nil {
		return nil, err
	}
	security, err := transport()
	if err != nil {
		return nil, err
	}
	options := []grpc.DialOption{
		grpc.WithTransportCredentials(security),
		// gRPC repeats idempotent calls that fail with UNAVAILABLE.
		grpc.WithDefaultServiceConfig(string(retries)),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(64 << 20)),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: 30 * time.Second, Timeout: 10 * time.Second}),
	}
	if value := os.Getenv("MNEMESH_TOKEN"); value != "" {
		options = append(options, grpc.WithPerRPCCredentials(token(value)))
	}
	target := os.Getenv("MNEMESH_TARGET")
	if target == "" {
		target = "localhost:50050"
	}
	return grpc.NewClient(target, options...)
}

func transport() (credentials.TransportCredentials, error) {
	authorities := os.Getenv("MNEMESH_GRPC_TLS_CA_FILE")
	if authorities == "" {
		return insecure.NewCredentials(), nil
	}
	pem, err := os.ReadFile(authorities)
	if err != nil {
		return nil, err
	}
	config := &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: x509.NewCertPool()}
	if !config.RootCAs.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("%s contains no certificate", authorities)
	}
	if certificate := os.Getenv("MNEMESH_GRPC_TLS_CERT_FILE"); certificate != "" {
		pair, err := tls.LoadX509KeyPair(certificate, os.Getenv("MNEMESH_GRPC_TLS_KEY_FILE"))
		if err != nil {
			return nil, err
		}
		config.Certificates = []tls.Certificate{pair}
	}
	return credentials.NewTLS(config), nil
}

// token is sent in the metadata of each call.
type token string

func (t token) GetRequestMetadata(context.Context, ...string) (map[string]string, error) {
	return map[string]string{"authorization": "Bearer " + string(t)}, nil
}

// RequireTransportSecurity allows a token without TLS, which is for connections within one machine.
func (t token) RequireTransportSecurity() bool { return false }
