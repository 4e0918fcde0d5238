"""From a run's settings to this rank's side of its exchange."""

from __future__ import annotations

from netoffload.collectives import Exchange, Quantise
from netoffload.compressors import Compressor, Layout
from netoffload.compressors.terngrad import TernGrad
from netoffload.errors import UsageError
from netoffload.training.config import TrainSettings
from netoffload.methods.floats import AggregatorExchange, GradientExchange, RingExchange, WorkerExchange
from netoffload.methods.payloads import GatherExchange, RingPayloadExchange, ServedExchange, ServerExchange
from netoffload.methods.averaging import AveragingExchange, QuantisedAveragingExchange
from netoffload.methods.registry import System, Way
from netoffload.methods.ternary_server import TernaryServer, TernaryWorker


def exchange_for(
    settings: TrainSettings, exchange: Exchange, quantise: Quantise | None, layer_sizes: tuple[int, ...] = ()
) -> GradientExchange:
    """Return this rank's side of the exchange that a run asks for; the last rank is the aggregator or server, if any.

    Args:
        settings: the run.
        exchange: all ranks of the run.
        quantise: what the NICs round by (``CompComm.quantiser``); only the compressed ring uses it.
        layer_sizes: lengths of the model's weights and biases, for compressors.

    Raises:
        UsageError: the number of ranks is not the run's, or a compressed ring has nothing to round by.
    """
    if exchange.size != settings.ranks:
        raise UsageError(
            f"{settings.exchange} with {settings.nodes} workers needs {settings.ranks} ranks, not {exchange.size}"
        )
    system = settings.system
    if system.compressor is not None:
        return _of_payloads(settings, system, system.compressor, exchange, Layout(layer_sizes))
    if system.averages_weights:
        return AveragingExchange(exchange, period=system.period, rotates=system.rotates)
    if system.way is Way.AGGREGATOR:
        aggregator = settings.ranks - 1
        if exchange.rank == aggregator:
            return AggregatorExchange(exchange, tagged=system.tagged)
        return WorkerExchange(exchange, tagged=system.tagged, aggregator=aggregator)
    if not system.tagged:
        return RingExchange(exchange, tagged=False, quantise=None)
    if quantise is None:
        raise UsageError(f"{settings.exchange} needs a codec to round by: no NIC has one")
    return RingExchange(exchange, tagged=True, quantise=quantise)


def _of_payloads(
    settings: TrainSettings, system: System, compressor: Compressor, exchange: Exchange, layout: Layout
) -> GradientExchange:
    if system.way is Way.PAYLOAD_RING:
        return RingPayloadExchange(exchange, compressor, layout, settings.seed)
    state = compressor.make_state(
        layout, seed=settings.seed, rank=exchange.rank, error_feedback=settings.error_feedback
    )
    if system.way is Way.SERVER:
        is_server = exchange.rank == settings.ranks - 1
        if isinstance(compressor, TernGrad):
            return (
                TernaryServer(exchange, compressor, layout) if is_server else TernaryWorker(exchange, compressor, state)
            )
        return (
            ServerExchange(exchange, compressor, layout) if is_server else ServedExchange(exchange, compressor, state)
        )
    gather = GatherExchange(exchange, compressor, state)
    if system.averages_weights:
        return QuantisedAveragingExchange(exchange, gather, period=system.period)
    return gather
