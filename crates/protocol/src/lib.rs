//! Consistency: certificates, version structures, and the client and server machines.
