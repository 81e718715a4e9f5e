"""grpc.health.v1, for the server and for each service: SERVING exactly when requests are taken."""

import structlog
from grpc_health.v1 import health
from grpc_health.v1.health_pb2 import HealthCheckResponse

from frontend_svc.backend import Backend
from frontend_svc.place import Place
from twostroke.v1 import generation_pb2 as pb

SERVICES = tuple(service.full_name for service in pb.DESCRIPTOR.services_by_name.values())

log = structlog.get_logger(service="frontend")


async def publish_health(
    backend: Backend, servicer: health.aio.HealthServicer, place: Place
) -> None:
    """Tells the health service and the runtime directory whenever readiness changes, until
    cancelled."""
    told: str | None = None
    while True:
        backend.changed.clear()
        reason = backend.reason
        if reason != told:
            told = reason
            place.show(serves=not reason)
            log.info("serving" if not reason else "not serving", reason=reason)
            for name in ("", *SERVICES):
                await servicer.set(
                    name,
                    HealthCheckResponse.NOT_SERVING if reason else HealthCheckResponse.SERVING,
                )
        await backend.changed.wait()
