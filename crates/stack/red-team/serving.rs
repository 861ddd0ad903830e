//! Enemies that are asked.

use crate::enemy::Enemy;
use crate::mutate::{Random, mutated};
use holdfast_components::{Refusal, Reply, Request};
use std::cell::RefCell;
use std::io::IoSlice;
use std::os::fd::AsFd;

/// Receives no request, and does nothing else.
pub fn silence() -> ! {
    loop {
        std::thread::sleep(std::time::Duration::from_secs(3600));
    }
}

/// Answers requests as `answer` says, until it is killed.
pub fn serve(enemy: &Enemy, answer: impl FnMut(Request) -> Reply) {
    let _ = enemy.context.ports.serve(answer);
}

/// Sends replies that do not fit, carry names that it does not have, have files with them, are too long, or malformed;
/// and packets that nobody asked for.
pub fn nonsense(enemy: &Enemy, samples: &[Vec<u8>], seed: u64) {
    let random = RefCell::new(Random(seed));
    serve(enemy, |request| {
        let random = &mut *random.borrow_mut();
        unasked(enemy, request.port, random);
        let body = mutated(samples, random);
        match random.below(9) {
            0 => Reply::refuse(Refusal::Code(random.draw() as u32 % 200)),
            1 => Reply::refuse(Refusal::Failed("x".repeat(random.below(4000)))),
            2 => Reply { alias: [1, 2, 63, 64, 9999][random.below(5)], outcome: Ok(body), files: Vec::new() },
            3 => Reply { alias: 0, outcome: Ok(vec![1; 70 << 10]), files: Vec::new() },
            _ => Reply { alias: 0, outcome: Ok(body), files: Vec::new() },
        }
    });
}

/// Packets that answer no request, or are malformed.
pub fn unasked(enemy: &Enemy, port: &str, random: &mut Random) {
    let Ok(channel) = enemy.context.ports.channel(port) else { return };
    for _ in 0..random.below(4) {
        let mut packet = vec![[1, 2, 3, 0, 255][random.below(5)], 0];
        packet.extend((random.below(4) as u16).to_le_bytes());
        packet.extend(if random.below(8) == 0 { [1; 4] } else { [0; 4] });
        packet.extend((random.draw() >> random.below(64)).to_le_bytes());
        // An empty packet would be taken for the end of the channel, which is the same as silence.
        packet.truncate(if random.below(8) == 0 { 1 + random.below(15) } else { 16 });
        packet.extend((0..random.below(60)).map(|_| random.draw() as u8));
        let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(200))];
        let mut files = rustix::net::SendAncillaryBuffer::new(&mut space);
        let own = vec![channel.as_fd(); random.below(200)];
        if random.below(8) == 0 {
            files.push(rustix::net::SendAncillaryMessage::ScmRights(&own));
        }
        let flags = rustix::net::SendFlags::DONTWAIT | rustix::net::SendFlags::NOSIGNAL;
        let _ = rustix::net::sendmsg(&*channel, &[IoSlice::new(&packet)], &mut files, flags);
    }
}
