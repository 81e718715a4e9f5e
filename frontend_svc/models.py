"""ModelService: what is served, and how it fares."""

from frontend_svc import errors
from frontend_svc.backend import Backend
from frontend_svc.boundary import Context
from twostroke.v1 import generation_pb2 as pb
from twostroke.v1.generation_pb2_grpc import ModelServiceServicer


class ModelService(ModelServiceServicer):
    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    async def GetModelInfo(
        self, request: pb.GetModelInfoRequest, context: Context
    ) -> pb.GetModelInfoResponse:
        model = self._backend.model
        if model is None:
            raise self._backend.refusal() or errors.not_ready("the model is not known yet")
        return pb.GetModelInfoResponse(
            name=model.info.name,
            sequence_length_max=model.sequence_len_max,
            vocab_size=model.vocab_size,
            eos_token_ids=model.info.eos_ids,
            dtype=model.info.dtype,
            device=model.info.device,
            has_chat_template=model.tokenizer.chat_template is not None,
        )

    async def GetServerStatus(
        self, request: pb.GetServerStatusRequest, context: Context
    ) -> pb.GetServerStatusResponse:
        """Always answers: that the scheduler is away is the status then."""
        status = await self._backend.fresh_status()
        reason = self._backend.reason
        response = pb.GetServerStatusResponse(ready=not reason, reason=reason)
        if status is not None:
            response.policy = status.policy
            response.depth = status.depth
            response.waiting = status.waiting
            response.running = status.running
            response.blocks_total = status.blocks_total
            response.blocks_free = status.blocks_free
            response.steps = status.steps
            response.output_tokens = status.tokens
            response.preemptions = status.preemptions
            response.swaps_out = status.swaps_out
            response.swaps_in = status.swaps_in
            response.epochs_lost = status.epochs_lost
            response.executor_busy_share = status.pace.busy_share
            response.host_lead_ms = status.pace.lead_ns / 1e6
            response.step_gap_ms = status.pace.gap_ns / 1e6
            response.step_gap_ms_max = status.pace.gap_ns_max / 1e6
        return response
