//! All integration tests of this crate, linked once: `scripts/test only release::MODULE::`.

mod attacks;
mod drafts;
mod golden_records;
mod golden_tree;
mod half_bad;
mod hints;
mod hostile_mirror;
mod https;
mod images;
mod live;
mod looking_ahead;
mod origin;
mod proxies;
mod publication;
mod publish;
mod publisher;
mod pull;
mod serve;
mod signed_bytes;
mod trust;
mod walker;
mod web_vectors;
