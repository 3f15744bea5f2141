"""The cost of secure aggregation for each client and for the server."""

import math

from workbench.errors import check_settings
from workbench.records.run import ProtocolCostRecord, ProtocolRoundRecord

PUBLIC_KEY_BYTES = 32  # X25519
SHARE_BYTES = 33  # share of a 32-byte secret
SEALED_BYTES = 2 * SHARE_BYTES + 16  # two shares and the ChaCha20-Poly1305 tag
_NUMBER_BYTES = 4  # a client's id in a list


def secure_aggregation_cost(
    clients: int,
    values: int,
    *,
    threshold: int | None = None,
    dropouts: int = 0,
    bits: int = 32,
    neighbours: int | None = None,
) -> ProtocolCostRecord:
    """Counts bytes, exchanges and mask words that secure aggregation adds to a round.

    Args:
        clients: Number of clients in one aggregation.
        values: Number of values in one client's update.
        threshold: As in `SecureSession`. Default: two thirds of the clients, rounded up.
        dropouts: Number of clients that drop out after the share exchange; it affects the server's work.
        bits: Number of bits of a masked value; a plain value has 32.
        neighbours: Number of other clients with which each client shares masks. Default: all other clients, as in the
            2017 protocol. In the 2020 protocol, this number grows with the logarithm of the number of clients.

    Returns:
        The cost, which can be passed to `population.simulate` as `protocol`.

    Raises:
        ProgramError: if the numbers are inconsistent.

    Example:
        >>> cost = secure_aggregation_cost(1000, values=1_000_000)
        >>> [(each.name, int(each.upload_bytes)) for each in cost.rounds]
        [('advertise keys', 64), ('share keys', 81918), ('masked input', 0), ('unmasking', 33000)]

    References:
        Bonawitz et al., "Practical Secure Aggregation for Privacy-Preserving Machine Learning", CCS 2017, table 1;
        Bell et al., "Secure Single-Server Aggregation with (Poly)Logarithmic Overhead", CCS 2020 (ePrint 2020/704).
    """
    needed = math.ceil(2 * clients / 3) if threshold is None else threshold
    peers = clients - 1 if neighbours is None else neighbours
    threshold_text = f"threshold={needed}" + (" (two thirds of the clients)" if threshold is None else "")
    check_settings(
        "secure_aggregation_cost",
        (clients >= 2, f"clients={clients}", "Masks cancel between clients: pass at least 2 `clients`."),
        (
            clients < 2 or 2 <= needed <= clients,
            threshold_text,
            f"At least two clients must answer: pass a `threshold` from 2 to {clients}.",
        ),
        (
            clients < 2 or 1 <= peers < clients,
            f"neighbours={peers}",
            f"A client shares masks with `neighbours` other clients: pass 1 to {clients - 1}.",
        ),
        (
            clients < 2 or 0 <= dropouts < clients,
            f"dropouts={dropouts}",
            f"At least one client must stay: pass `dropouts` from 0 to {clients - 1}.",
        ),
        (values >= 1, f"values={values}", "An update has at least one value: pass `values` above 0."),
        (bits >= 1, f"bits={bits}", "Pass at least 1 for `bits`."),
    )
    survivors = clients - dropouts
    rounds = (
        ProtocolRoundRecord(
            name="advertise keys",
            upload_bytes=2 * PUBLIC_KEY_BYTES,
            download_bytes=peers * 2 * PUBLIC_KEY_BYTES,
            after_training=False,
        ),
        ProtocolRoundRecord(
            name="share keys",
            upload_bytes=peers * SEALED_BYTES,
            download_bytes=peers * SEALED_BYTES,
            after_training=False,
        ),
        ProtocolRoundRecord(
            name="masked input",
            upload_bytes=values * (bits - 32) / 8,
            download_bytes=peers * _NUMBER_BYTES,
            after_training=False,
        ),
        ProtocolRoundRecord(
            name="unmasking", upload_bytes=(peers + 1) * SHARE_BYTES, download_bytes=0, after_training=True
        ),
    )
    return ProtocolCostRecord(
        name="secure aggregation",
        rounds=rounds,
        clients=clients,
        threshold=needed,
        client_operations=float((peers + 1) * values),
        server_operations=float((survivors + dropouts * min(peers, survivors)) * values),
        dropouts=dropouts,
        references=("Bonawitz et al., CCS 2017", *(["Bell et al., CCS 2020"] * (neighbours is not None))),
    )
