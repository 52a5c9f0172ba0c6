//! Connections that break or corrupt data, at any byte.

use cairn_nvme::Error;
use cairn_nvme::controller::Settings;
use cairn_nvme::remote::Remote;
use cairn_nvme::tcp::TcpFabric;
use std::net::{SocketAddr, TcpListener};
use std::time::Duration;

use crate::peer::{PART_BYTES, Peer, pattern, settings, subsystem};
use crate::proxy::{Harm, Proxy};

const PATIENCE: Duration = Duration::from_secs(60);

fn remote(address: SocketAddr) -> Remote<TcpFabric> {
    let fabric = TcpFabric { header_digest: true, data_digest: true, ..TcpFabric::new(address) };
    Remote::connect(fabric, &subsystem(), 2, &settings(), PATIENCE).expect("connected")
}

/// Approximate number of bytes that connecting takes.
const CONNECTING_BYTES: i64 = 20_000;

/// Does every operation once in a part of the namespace, with a fault somewhere in the middle, at
/// another place each time.
fn survive(harm: Harm, part: u64, first: i64) {
    let peer = Peer::start();
    let bytes = pattern(11, 300 << 10);
    for left in (0..20).map(|step| first + step * 30_011) {
        println!("after {left} bytes");
        let proxy = Proxy::start(peer.address, harm, left);
        let mut remote = remote(proxy.address);
        let start = part * PART_BYTES;
        remote.write_zeroes(start, bytes.len() as u64, false).unwrap();
        remote.write(start, &bytes).unwrap();
        remote.flush().unwrap();
        let mut again = vec![0; bytes.len()];
        remote.read(start, &mut again).unwrap();
        assert!(again == bytes);
        assert!(left > 600_000 || proxy.is_done());
        remote.keep_alive().unwrap();
        remote.shut_down().unwrap();
    }
}

#[test]
fn connection_that_breaks_in_the_middle_of_anything_is_made_again_and_nothing_is_lost() {
    survive(Harm::Break, 4, CONNECTING_BYTES);
}

#[test]
fn bits_that_change_on_their_way_are_noticed_and_the_bytes_are_sent_again() {
    survive(Harm::Flip, 6, CONNECTING_BYTES + 7);
}

#[test]
fn target_that_is_gone_is_given_up_after_a_while() {
    let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let address = listener.local_addr().unwrap();
    drop(listener);
    let fabric = TcpFabric::new(address);
    let settings = Settings { timeout: Duration::from_millis(100), ..settings() };
    let refused = Remote::connect(fabric, &subsystem(), 1, &settings, PATIENCE).map(|_| ());
    assert!(matches!(refused, Err(Error::System { action: "connect", .. })), "{refused:?}");
}

#[test]
fn peer_that_says_nothing_is_not_waited_for_longer_than_asked() {
    let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let address = listener.local_addr().unwrap();
    let fabric = TcpFabric::new(address);
    let settings = Settings { timeout: Duration::from_millis(100), ..settings() };
    let refused = Remote::connect(fabric, &subsystem(), 1, &settings, PATIENCE).map(|_| ());
    assert!(matches!(refused, Err(Error::TimedOut { .. })), "{refused:?}");
}
