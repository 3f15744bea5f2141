"""The parties of secure aggregation: keys, shares and the server's knowledge."""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from jaxtyping import Bool, UInt32

from workbench.errors import EngineError, ProgramError, needs_library
from workbench.federated.algorithms._secure_cost import SHARE_BYTES, secure_aggregation_cost
from workbench.federated.algorithms._shamir import PRIME, recover_secret, share_secret
from workbench.records.run import ProtocolCostRecord

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305


class Masks(NamedTuple):
    """Seeds for one round; four fields come from the clients, and the server recovers the last three.

    Attributes:
        pairs: Seed that each pair of clients shares, `[clients, clients, 8]`.
        own: Seed of each client's own mask, `[clients, 8]`.
        noise: Seed of each client's noise, `[clients, 8]`; no other client holds a share of it.
        present: Whether each client's words reach the server, `[clients]`.
        revealed_own: Own seeds of survivors, `[clients, 8]`; 0 for other clients.
        revealed_pairs: Seeds of pairs between a dropped client and a survivor, `[clients, clients, 8]`; 0 for other
            pairs.
        survived: The server's copy of `present`, `[clients]`.
    """

    pairs: UInt32[np.ndarray, "clients clients 8"]
    own: UInt32[np.ndarray, "clients 8"]
    noise: UInt32[np.ndarray, "clients 8"]
    present: Bool[np.ndarray, " clients"]
    revealed_own: UInt32[np.ndarray, "clients 8"]
    revealed_pairs: UInt32[np.ndarray, "clients clients 8"]
    survived: Bool[np.ndarray, " clients"]


@dataclasses.dataclass(frozen=True)
class SecureSession:
    """Secure aggregation: the server learns the sum if enough clients stay, otherwise nothing.

    Each pair of clients agrees on a mask that cancels in the sum (X25519, HKDF), and each client has its own mask. Keys
    and own seeds are shared among all clients (Shamir) and encrypted for their receivers (ChaCha20-Poly1305), so that
    the masks of dropped clients can be removed. A client reveals a share of another client's key *or* of its seed,
    never of both. The server is honest but curious: it may read everything that it receives. Clients reject a second
    set of survivors, a set smaller than the threshold, and a set that does not include them. Keys are not signed, so
    clients cannot detect whether the server invents clients.

    Args (of the constructor):
        clients: Number of clients in one aggregation.
        threshold: Minimum number of clients whose results and recovery answers must arrive; more than half of all
            clients.

    Raises:
        ProgramError: if the threshold is out of range.
        MissingDependencyError: when a round begins, if `cryptography` (extra `secure-aggregation`) is not installed.

    References:
        Bonawitz et al., "Practical Secure Aggregation for Privacy-Preserving Machine Learning", CCS 2017, figure 4
        (the version for honest-but-curious servers).
    """

    clients: int
    threshold: int

    def __post_init__(self) -> None:
        if not self.clients >= 2 or not self.clients / 2 < self.threshold <= self.clients:
            message = (
                f"`SecureSession` received clients={self.clients} and threshold={self.threshold}. Two disjoint groups "
                "of clients must not both reach the threshold: pass at least 2 clients, and clients / 2 < threshold "
                "<= clients."
            )
            raise ProgramError(message)

    def begin(self) -> "SecureRound":
        """Runs the exchanges before training: new keys are agreed on and shared among all clients."""
        return SecureRound(self)

    def masks(self, present: Sequence[bool] | Bool[np.ndarray, " clients"]) -> Masks:
        """Runs a whole round for `secure_mean` with the present clients, from new keys to recovery.

        Args:
            present: Whether each client's result arrives.

        Raises:
            EngineError: if fewer clients stay than the threshold requires.
            ProgramError: if the length of `present` is not the number of clients.
        """
        if np.shape(present) != (self.clients,):
            message = (
                f"`SecureSession.masks` received `present` of shape {np.shape(present)} for {self.clients} clients. "
                f"`present` states for each client whether its result arrives: pass {self.clients} booleans."
            )
            raise ProgramError(message)
        opened = self.begin()
        survivors = [int(client) for client in np.flatnonzero(np.asarray(present))]
        return opened.reveal(survivors)

    def cost(self, values: int, *, dropouts: int = 0) -> ProtocolCostRecord:
        """Cost of a round for updates of `values` numbers; see `secure_aggregation_cost`."""
        return secure_aggregation_cost(self.clients, values, threshold=self.threshold, dropouts=dropouts)


class SecureRound:
    """One round of a session, after keys and shares were exchanged.

    Attributes:
        received: All bytes that the server has received (keys, sealed shares and shares), by exchange and client.
    """

    def __init__(self, session: SecureSession) -> None:
        self._session = session
        self.received: dict[tuple[str, int], bytes] = {}
        self._parties = [_Party(number, session) for number in range(session.clients)]
        keys = {party.number: party.advertise() for party in self._parties}
        for number, key in keys.items():
            self.received["advertise keys", number] = b"".join(key)
        self._keys = keys
        sealed = {party.number: party.seal(keys) for party in self._parties}
        for number, envelopes in sealed.items():
            self.received["share keys", number] = b"".join(envelopes.values())
        for party in self._parties:
            party.sealed = {number: e[party.number] for number, e in sealed.items() if number != party.number}

    def client_seeds(self) -> tuple[UInt32[np.ndarray, "clients clients 8"], UInt32[np.ndarray, "clients 8"]]:
        """Returns the clients' secrets: the seeds of the pairwise masks and of their private masks."""
        count = self._session.clients
        pairs = np.zeros((count, count, 8), np.uint32)
        for party in self._parties:
            for number, key in self._keys.items():
                if number != party.number:
                    pairs[party.number, number] = _words(party.agree(key))
        return pairs, np.stack([_words(party.seed) for party in self._parties])

    def reveal(self, survivors: Iterable[int], *, responders: Iterable[int] | None = None) -> Masks:
        """Runs the exchange after training: recovers the masks in the survivors' sum.

        Args:
            survivors: Clients whose masked results arrived.
            responders: Survivors that can still answer. Default: all.

        Raises:
            EngineError: if fewer clients than the threshold survive or answer, or if their answers contradict each
                other.
            ProgramError: if this round was already revealed for different survivors, because two answers would unmask a
                client.
        """
        alive = sorted(set(survivors))
        answering = alive if responders is None else sorted(set(responders) & set(alive))
        needed = self._session.threshold
        if min(len(alive), len(answering)) < needed:
            message = (
                f"`SecureRound.reveal` received the results of {len(alive)} of {self._session.clients} clients and "
                f"recovery answers of {len(answering)} clients. Both numbers must reach the threshold of {needed}, "
                "otherwise the sum cannot be recovered: repeat the round with clients that stay until its end, or "
                "start a session with a lower threshold."
            )
            raise EngineError(message)
        answers = {number: self._parties[number].answer(alive) for number in answering}
        for number, answer in answers.items():
            if not all(0 <= share < PRIME for share in answer):
                message = (
                    f"`SecureRound.reveal` received a number outside of the field as a share of client {number}. "
                    "A share must be an integer from 0 to 2^256 + 296: begin a new round without this client."
                )
                raise EngineError(message)
            self.received["unmasking", number] = b"".join(share.to_bytes(SHARE_BYTES, "little") for share in answer)
        pairs, seeds = self.client_seeds()
        revealed_own, revealed_pairs = np.zeros_like(seeds), np.zeros_like(pairs)
        for client in range(self._session.clients):
            shares = {number + 1: answer[client] for number, answer in answers.items()}
            secret = _recovered(client, shares, needed, key=None if client in alive else self._keys[client].masking)
            if client in alive:
                revealed_own[client] = _words(secret)
            else:
                for peer in alive:
                    revealed_pairs[client, peer] = _words(_agree(secret, self._keys[peer].masking))
        survived = np.isin(np.arange(self._session.clients), alive)
        noise = np.stack([_words(party.noise) for party in self._parties])
        return Masks(pairs, seeds, noise, survived, revealed_own, revealed_pairs, survived.copy())


def _recovered(client: int, shares: Mapping[int, int], threshold: int, key: bytes | None) -> bytes:
    """Recovers the secret from a client's shares, and checks a private key against its public key."""
    try:
        secret = recover_secret(shares, threshold=threshold)
    except ProgramError:
        secret = None
    if secret is None or (key is not None and _public(secret) != key):
        message = (
            f"`SecureRound.reveal` received {len(shares)} inconsistent shares of a secret of client {client}. "
            f"At least one of the clients {sorted(number - 1 for number in shares)} answered with a wrong share, or "
            f"client {client} distributed wrong shares: begin a new round, without the clients that you do not trust."
        )
        raise EngineError(message)
    return secret


class _Keys(NamedTuple):
    sealing: bytes
    masking: bytes


class _Party:
    """One client's secrets; only its own methods read them."""

    def __init__(self, number: int, session: SecureSession) -> None:
        import secrets

        self.number, self._session = number, session
        self._sealing, self._masking = secrets.token_bytes(32), secrets.token_bytes(32)
        self.seed, self.noise = secrets.token_bytes(32), secrets.token_bytes(32)
        self._own_shares: tuple[int, int] = (0, 0)
        self._public: Mapping[int, _Keys] = {}
        self._answered: list[int] | None = None
        self.sealed: dict[int, bytes] = {}

    def advertise(self) -> _Keys:
        return _Keys(_public(self._sealing), _public(self._masking))

    def seal(self, keys: Mapping[int, _Keys]) -> dict[int, bytes]:
        """Creates two shares for each other client, encrypted for that client."""
        self._public = keys
        count, threshold = self._session.clients, self._session.threshold
        of_key = share_secret(self._masking, shares=count, threshold=threshold)
        of_seed = share_secret(self.seed, shares=count, threshold=threshold)
        self._own_shares = of_key[self.number + 1], of_seed[self.number + 1]
        return {
            number: self._cipher(number, self.number).encrypt(
                bytes(12), of_key[number + 1].to_bytes(33, "little") + of_seed[number + 1].to_bytes(33, "little"), None
            )
            for number in keys
            if number != self.number
        }

    def answer(self, survivors: list[int]) -> list[int]:
        """Returns shares of survivors' seeds and of dropped clients' keys."""
        if self._answered is not None and self._answered != survivors:
            message = (
                f"Client {self.number} was asked to unmask the survivors {survivors} after {self._answered}. Shares of "
                "a client's key and of its seed together unmask it, so a client answers only for one set of "
                "survivors: begin a new round."
            )
            raise ProgramError(message)
        if len(survivors) < self._session.threshold or self.number not in survivors:
            message = (
                f"Client {self.number} was asked to unmask the survivors {survivors}. A sum of fewer than "
                f"{self._session.threshold} clients would reveal too much about each client, and a client answers only "
                "for sums that include its own result: wait for more results."
            )
            raise ProgramError(message)
        self._answered = list(survivors)
        alive, answers = set(survivors), []
        for number in range(self._session.clients):
            if number == self.number:
                key, seed = self._own_shares
            else:
                opened = self._open(number)
                key, seed = int.from_bytes(opened[:33], "little"), int.from_bytes(opened[33:], "little")
            answers.append(seed if number in alive else key)
        return answers

    def _open(self, sender: int) -> bytes:
        from cryptography.exceptions import InvalidTag

        try:
            return self._cipher(self.number, sender).decrypt(bytes(12), self.sealed[sender], None)
        except InvalidTag as error:
            message = (
                f"Client {self.number} cannot open the shares that client {sender} sealed for it. The shares were "
                "changed in transit, sealed for a different client or reused from a different round: begin a new round."
            )
            raise EngineError(message) from error

    def agree(self, peer: _Keys) -> bytes:
        return _agree(self._masking, peer.masking)

    def _cipher(self, receiver: int, sender: int) -> "ChaCha20Poly1305":
        """Derives the key of one message in one direction, so the nonce may be fixed."""
        peer = sender if receiver == self.number else receiver
        with needs_library("cryptography", extra="secure-aggregation", needed_for="`SecureSession`"):
            from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
        key = _exchange(self._sealing, self._public[peer].sealing, f"shares {sender} to {receiver}")
        return ChaCha20Poly1305(key)


def _public(private: bytes) -> bytes:
    with needs_library("cryptography", extra="secure-aggregation", needed_for="`SecureSession`"):
        from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
    return X25519PrivateKey.from_private_bytes(private).public_key().public_bytes_raw()


def _agree(private: bytes, public: bytes) -> bytes:
    """Derives the seed of the mask that two clients share."""
    return _exchange(private, public, "pairwise mask")


def _exchange(private: bytes, public: bytes, purpose: str) -> bytes:
    with needs_library("cryptography", extra="secure-aggregation", needed_for="`SecureSession`"):
        from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
        from cryptography.hazmat.primitives.hashes import SHA256
        from cryptography.hazmat.primitives.kdf.hkdf import HKDF
    shared = X25519PrivateKey.from_private_bytes(private).exchange(X25519PublicKey.from_public_bytes(public))
    return HKDF(SHA256(), 32, None, purpose.encode()).derive(shared)


def _words(seed: bytes) -> UInt32[np.ndarray, " 8"]:
    return np.frombuffer(seed, "<u4").astype(np.uint32)
