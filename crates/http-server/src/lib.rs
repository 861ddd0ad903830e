//! The one HTTP/1.1 server: releases, their gateway, witnesses and figures for monitoring are served by it.
//!
//! A user gives a handler of requests for each connection ([`HttpServer::run`]), or a function from short requests to short
//! replies ([`HttpServer::run_plain`]). What is common to all is here: listening, connections, bodies, and an end that lets
//! replies under way arrive.
//!
//! Bounds ([`Limits`]): connections at once, also by the system's limit on open files; bytes of a head, which is also what
//! waits in memory for a slow reader, but for one piece; time for a connection that asks for nothing, sends a request byte by
//! byte or hardly takes its reply. When most connections are taken each is closed after its reply, so that others get a turn.
//!
//! Attack answered: strangers who connect often, send slowly, send much, or do not read.
#![forbid(unsafe_code)]

mod body;
mod connection;
mod plain;
mod server;

pub use body::{BodyError, Pieces, ReplyBody, read_body};
pub use hyper::{Method, StatusCode};
pub use plain::{HttpReply, HttpRequest, PLAIN};
pub use server::{HttpServer, Limits};
