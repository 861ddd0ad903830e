//! The one HTTP/1.1 server: releases, their gateway, witnesses and figures for monitoring are served by it.
//!
//! A caller provides a handler of requests for each connection ([`HttpServer::run`]), or a function from
//! short requests to short replies ([`HttpServer::run_plain`]). This crate has the common parts: listening,
//! connections, bodies, and a shutdown that lets running replies arrive.
//!
//! Bounds ([`Limits`]): the number of connections, also by the system's limit on open files; the length of a
//! head, which also bounds what waits in memory for a slow reader, apart from one piece; the time of a
//! connection that requests nothing, sends a request byte by byte, or hardly reads its reply. When most
//! connections are taken, each is closed after its reply, so that other clients get a turn.
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
